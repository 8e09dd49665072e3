"""Packing against `jpegtran -optimize -restart` on the same photographs and cores.

    python -m benchmarks.data_packing [files]

jpegtran rewrites without looking at the result; packing decodes every file before and after and
compares all pixels, so the cost of one whole decode of each is measured beside it. Alternating
rounds; CPU seconds of the processes and their children count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.data_photographs import photograph_files
from custom_op import decode_and_crop_jpeg, jpeg_size
from entry_point.data.config import usable_cores
from entry_point.data.packing.config import OptimizeConfig
from entry_point.data.packing.pack import pack

ROUNDS = 3


def cpu_seconds(work: Callable[[], None]) -> float:
    before = os.times()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def jpegtran(files: Iterable[Path], output: Path) -> None:
    command = ["jpegtran", "-optimize", "-restart", "4B", "-copy", "all", "-outfile"]

    def rewrite(file: Path) -> None:
        subprocess.run([*command, str(output / f"{hash(file)}.jpg"), str(file)], check=True)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(rewrite, files))


def decode_all(files: Iterable[Path]) -> None:
    for file in files:
        data = torch.from_numpy(np.fromfile(file, dtype=np.uint8))
        decode_and_crop_jpeg(data, 0, 0, *jpeg_size(data))


def main(per_class: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "photographs")
        files = photograph_files(source, per_class)
        seconds: dict[str, list[float]] = {"pack": [], "jpegtran": [], "decode": []}
        for number in range(ROUNDS):
            output = Path(folder, f"round-{number}")
            output.mkdir()
            packing = partial(pack, source, output / "packed", OptimizeConfig())
            seconds["pack"].append(cpu_seconds(packing))
            seconds["jpegtran"].append(cpu_seconds(partial(jpegtran, files, output)))
            seconds["decode"].append(cpu_seconds(partial(decode_all, files)))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in median.items():
        sys.stdout.write(f"{name:9} {len(files) / value:7.0f} files per CPU second\n")
    sys.stdout.write(
        f"packing has {median['jpegtran'] / median['pack']:.0%} of jpegtran's throughput; "
        f"two decodes are {2 * median['decode'] / median['pack']:.0%} of packing\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
