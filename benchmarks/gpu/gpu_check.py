"""Measures on a GPU whether training and serving keep their promises: docs/results/gpu-NAME.md.

`python -m benchmarks.gpu.gpu_check [PART ...] [device=cpu] [out=FOLDER]`. Each part leaves
PART.json and PART.log in FOLDER; `page` judges them and writes the page, on any machine. Without a
part, all run in turn. `device=cpu` is a dry run of little size, whose page goes into FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.gpu_jobs import PARTS, Plan, read_results, run_part
from benchmarks.gpu.gpu_page import judge, report, write_page


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if no promise is broken, 1 if one is, 2 if nothing could run."""
    given = dict(argument.partition("=")[::2] for argument in arguments if "=" in argument)
    parts = [argument for argument in arguments if "=" not in argument] or [*PARTS, "page"]
    unknown = {*parts} - {*PARTS, "page"} | {*given} - {"device", "out", "work"}
    device = given.get("device", "cuda")
    if unknown or device not in ("cuda", "cpu"):
        wrong = ", ".join(sorted(unknown)) or f"device={device}"
        allowed = f"{', '.join([*PARTS, 'page'])}, device=cuda|cpu, out=FOLDER, work=FOLDER"
        return _refuse(f"{wrong}: must be some of {allowed}")
    if parts != ["page"] and device == "cuda" and not torch.cuda.is_available():
        return _refuse("torch finds no CUDA device; device=cpu makes a dry run")
    folder = Path(given.get("out", "runs/gpu-check")).resolve()
    plan = Plan(device, Path(given.get("work", "runs/gpu-work")).resolve())
    for part in parts:
        if part in PARTS:
            run_part(plan, part, PARTS[part](plan), folder)
    results = read_results(folder)
    if not results:
        return _refuse(f"out={folder}: holds no part's result; run a part first")
    if "page" not in parts:
        return report([verdict for verdict in judge(results) if verdict.part in parts])
    try:
        return write_page(results, folder)
    except ValueError as error:
        return _refuse(str(error))


def _refuse(reason: str) -> int:
    sys.stderr.write(f"gpu-check: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
