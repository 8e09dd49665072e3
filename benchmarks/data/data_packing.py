"""Packing against `jpegtran -optimize -restart` on the same files: docs/results/data-packing.md.

`python -m benchmarks.data.data_packing [FILES_PER_CLASS]`. CPU time of the processes and their
children, in alternating rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import numpy as np
import torch

from benchmarks import measure
from benchmarks.sample_photographs import photograph_files
from custom_op import decode_and_crop_jpeg, jpeg_size
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.pack import pack
from entry_point.job.cores import usable_cores

ROUNDS = 3
PACKING, JPEGTRAN, DECODE = "this template (packing)", "jpegtran", "one whole decode"
TITLE = "Packing against jpegtran"


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
    with TemporaryDirectory() as folder:
        source = Path(folder, "photographs")
        files = photograph_files(source, per_class)

        def packing() -> None:
            pack(source, Path(mkdtemp(dir=folder), "packed"), OptimizeConfig())

        contenders: dict[str, Callable[[], object]] = {
            PACKING: packing,
            JPEGTRAN: lambda: jpegtran(files, Path(mkdtemp(dir=folder))),
            DECODE: lambda: decode_all(files),
        }
        seconds = measure.alternate(contenders, ROUNDS, measure.cpu_seconds)
    ms = {name: 1e3 * statistics.median(times) / len(files) for name, times in seconds.items()}
    method = (
        f"{len(files)} photographs; CPU ms per file of the process and its children, medians of "
        f"{ROUNDS} alternating rounds. jpegtran (`-optimize -restart 4B -copy all`, one process "
        "per file) does not check its result. Packing decodes every file and compares it with "
        "crops that its index finds; progressive files are decoded before and after they become "
        f"baseline. Packing takes {ms[PACKING] / ms[JPEGTRAN]:.0%} of the time of jpegtran; a "
        f"whole decode is {ms[DECODE] / ms[PACKING]:.0%} of packing."
    )
    plot(ms)
    rows = [[name, value, f"{1e3 / value:.0f}"] for name, value in ms.items()]
    table = measure.table(["", "CPU ms per file", "files per CPU second"], rows)
    sys.stdout.write(measure.write("data-packing", "data", TITLE, method, [table]))


def plot(ms: dict[str, float]) -> None:
    measure.bars("data-packing", TITLE, "CPU ms per file", ms)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
