"""One command that says whether the GPU paths keep their promises: docs/results/gpu.md.

`python -m benchmarks.gpu.gpu_check [part=N] [device=cuda|cpu] [out=FOLDER] [minutes=9.5]`. Each
part leaves FOLDER/partN.json; without `part`, all run in turn. `device=cpu` is a dry run of little
size, which writes its page into the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from omegaconf import OmegaConf

from benchmarks import measure
from benchmarks.gpu.gpu_behaviour import behaviour_part
from benchmarks.gpu.gpu_machine import machine_part
from benchmarks.gpu.gpu_page import write_page
from benchmarks.gpu.gpu_part import Part, read_parts, write_part
from benchmarks.gpu.gpu_plan import Check
from benchmarks.gpu.gpu_serving import serving_part
from benchmarks.gpu.gpu_speed import speed_part
from entry_point.config.compose import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.knob import check_knobs, knob

PAGE = 6
PARTS: dict[int, Callable[[Check], Part]] = {
    1: machine_part,
    2: behaviour_part,
    3: partial(speed_part, compiled=False),
    4: partial(speed_part, compiled=True),
    5: serving_part,
}


@dataclass
class Asked:
    """The command line."""

    part: int | None = knob(None, least=1, most=PAGE)
    device: str = knob("cuda", choices=("cuda", "cpu"))
    out: str = "runs/gpu-check"
    minutes: float = knob(9.5, above=0)
    """A part begins no further job on a GPU with less than a minute of these left."""

    def __post_init__(self) -> None:
        check_knobs(self)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if no promise is broken, 1 if one is, 2 if nothing could run."""
    try:
        asked = check_config(OmegaConf.from_dotlist(list(arguments)), Asked, arguments)
    except ConfigError as error:
        sys.stderr.write(f"gpu-check: {error}\n")
        return 2
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("gpu-check: torch finds no CUDA device; DEVICE=cpu makes a dry run\n")
        return 2
    folder = Path(asked.out).resolve()
    for number, run in PARTS.items():
        if asked.part in (None, number):
            write_part(run(Check(asked.device, folder, asked.minutes)), folder, number)
    if asked.part not in (None, PAGE):
        return _report(read_parts(folder)[asked.part])
    place = measure.RESULTS if asked.device == "cuda" else folder
    path, kept = write_page(read_parts(folder), asked.device, place)
    sys.stdout.write(path.read_text(encoding="utf-8"))
    return 0 if kept else 1


def _report(part: Part) -> int:
    for check in part.checks:
        word = {True: "holds", False: "BROKEN", None: "not measured"}[check.holds]
        sys.stdout.write(f"{word:12}  {check.promise}: {check.found}\n")
    return 1 if any(check.holds is False for check in part.checks) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
