"""One command that says whether the GPU paths keep their promises: docs/results/gpu-NAME.md.

`python -m benchmarks.gpu.gpu_check [part=PART] [device=cuda|cpu] [out=FOLDER] [minutes=9.5]`. Each
part leaves PART.json and PART.log in FOLDER; `part=page` writes the page from them, on any machine.
Without `part`, all run in turn. `device=cpu` is a dry run of little size, which is judged by the
same rules and writes its page into the folder.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from omegaconf import OmegaConf
from pydantic.dataclasses import dataclass

from benchmarks import measure
from benchmarks.gpu.gpu_page import Mixed, write_page
from benchmarks.gpu.gpu_plan import PARTS, Plan
from benchmarks.gpu.gpu_runs import Result, read_results, run_part
from benchmarks.gpu.gpu_verdicts import BROKEN, Verdict, judge
from entry_point.config.config_errors import ConfigError, near
from entry_point.config.mistakes import check_config
from entry_point.config.schema import SETTINGS, Positive

PAGE = "page"


@dataclass(config=SETTINGS)
class Asked:
    """The command line."""

    part: str | None = None
    device: Literal["cuda", "cpu"] = "cuda"
    out: str = "runs/gpu-check"
    """Results and logs."""
    work: str = "runs/gpu-work"
    """The data set, which is kept between parts, and the folders of the jobs."""
    minutes: Positive = 9.5
    """For one part. A case is skipped if its estimate is longer than what is left."""

    def __post_init__(self) -> None:
        known = (*PARTS, PAGE)
        if self.part is not None and self.part not in known:
            must = f"must be one of {', '.join(known)}{near(self.part, known)}"
            raise ConfigError("part", self.part, must)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if no promise is broken, 1 if one is, 2 if nothing could run."""
    try:
        typed = OmegaConf.to_container(OmegaConf.from_dotlist(list(arguments)))
        asked = check_config(cast(dict[str, Any], typed), Asked)
    except ConfigError as error:
        return _refuse(str(error))
    if asked.part != PAGE and asked.device == "cuda" and not torch.cuda.is_available():
        return _refuse("torch finds no CUDA device; device=cpu makes a dry run")
    folder = Path(asked.out).resolve()
    for part, cases in PARTS.items():
        if asked.part in (None, part):
            plan = Plan(asked.device, Path(asked.work).resolve(), asked.minutes)
            run_part(plan, part, cases(plan), folder)
    results = read_results(folder, tuple(PARTS))
    if asked.part not in (None, PAGE):
        return report([v for v in judge(results) if v.part == asked.part])
    return _publish(results, folder)


def report(verdicts: Sequence[Verdict]) -> int:
    """Print the verdicts; returns the exit code."""
    for verdict in verdicts:
        word = verdict.word.upper() if verdict.word == BROKEN else verdict.word
        sys.stdout.write(f"{word:12}  {verdict.promise}: {verdict.reason}\n")
    counts = Counter(verdict.word for verdict in verdicts)
    sys.stdout.write(f"{', '.join(f'{count} {word}' for word, count in counts.items())}\n")
    return int(BROKEN in counts)


def _publish(results: Mapping[str, Result], folder: Path) -> int:
    """Write the page: a dry run's into the folder."""
    if not results:
        return _refuse(f"out={folder}: holds no part's result; run a part first")
    real = all(result.origin.device == "cuda" for result in results.values())
    try:
        path, verdicts = write_page(results, measure.RESULTS if real else folder)
    except Mixed as error:
        return _refuse(str(error))
    code = report(verdicts)
    sys.stdout.write(f"{path}\n")
    return code


def _refuse(reason: str) -> int:
    sys.stderr.write(f"gpu-check: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
