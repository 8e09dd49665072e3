"""Packing against `jpegtran -optimize -restart` on the same photographs and cores.

    python -m benchmarks.data.data_packing [files]

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

from benchmarks import measure
from benchmarks.data.data_photographs import photograph_files
from custom_op import decode_and_crop_jpeg, jpeg_size
from entry_point.config.data_config import usable_cores
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.pack import pack

ROUNDS = 3
PACK, JPEGTRAN, DECODE = "packing", "jpegtran", "one whole decode"


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
        seconds: dict[str, list[float]] = {PACK: [], JPEGTRAN: [], DECODE: []}
        for number in range(ROUNDS):
            output = Path(folder, f"round-{number}")
            output.mkdir()
            packing = partial(pack, source, output / "packed", OptimizeConfig())
            seconds[PACK].append(cpu_seconds(packing))
            seconds[JPEGTRAN].append(cpu_seconds(partial(jpegtran, files, output)))
            seconds[DECODE].append(cpu_seconds(partial(decode_all, files)))
    ms = {name: 1e3 * statistics.median(times) / len(files) for name, times in seconds.items()}
    title = "Packing against jpegtran"
    method = (
        f"{len(files)} photographs; CPU ms per file of the process and its children, medians of "
        f"{ROUNDS} alternating rounds. jpegtran (`-optimize -restart 4B -copy all`, a process for "
        "each file) does not look at its result; packing decodes every file before "
        "and after and compares all pixels. "
        f"Packing has {ms[JPEGTRAN] / ms[PACK]:.0%} of jpegtran's throughput; two whole decodes "
        f"are {2 * ms[DECODE] / ms[PACK]:.0%} of its time."
    )
    rows = [[name, value, f"{1e3 / value:.0f}"] for name, value in ms.items()]
    measure.bars("data-packing", title, "CPU ms per file", ms, ours=PACK)
    table = measure.table(["", "CPU ms per file", "files per CPU second"], rows)
    sys.stdout.write(measure.write("data-packing", title, method, [table]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
