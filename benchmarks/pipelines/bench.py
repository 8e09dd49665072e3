"""Every pipeline engine on your data and machine: `make bench`, or

    python -m benchmarks.pipelines.bench [data.root=PATH] [seconds=1] [rounds=3] [publish=false] ...

Each engine runs with 1, 2, 4 ... workers up to the cores, each time in a process of its own, in
alternating rounds. Medians go into a table, a plot and one page under `output`, with the setting to
use on this machine; publish=true writes table and plot into docs/results too.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from omegaconf import OmegaConf

from benchmarks.measure import RESULTS
from benchmarks.pipelines.images import Images, prepare
from benchmarks.pipelines.page import Page
from benchmarks.pipelines.run_case import STAGES, Case, Result
from benchmarks.pipelines.table import ON_FILES, Measurement
from entry_point.config.compose import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import usable_cores
from entry_point.config.knob import check_knobs, knob
from entry_point.data.errors import DataError

ENGINES = ("pillow", "workers", "threads", "subprocess")
PEERS = {"dali": "nvidia.dali", "spdl.io": "spdl.io"}
PATIENCE_S = 300.0
START_S = 4.0
"""What a process needs before it can measure, roughly."""


@dataclass
class Data:
    root: str | None = None
    """A folder of images, root/train/<class>/*.jpg, or what `make dataset` wrote; null: the demo.
    """


@dataclass
class BenchConfig:
    data: Data = field(default_factory=Data)
    image_size: int = knob(224, least=8, most=4096)
    batch_size: int = knob(32, least=1)
    images: int = 1000
    """Of a folder, how many images are packed and read."""
    ways: list[str] | None = knob(None, choices=(*ENGINES, *PEERS))
    """null: all engines, and DALI and SPDL's decoding where they are installed."""
    workers: list[int] | None = knob(None, least=1)
    """null: 1, 2, 4 ... and the number of usable cores."""
    seconds: float = knob(1.0, above=0)
    """Of each stage of each run, after half as long to warm up."""
    rounds: int = knob(3, least=1)
    output: str = "runs/bench/pipelines"
    publish: bool = False
    """Write docs/results/pipelines.md and .png too."""

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.images < self.batch_size:
            raise ConfigError(
                "images", self.images, f"must be at least batch_size={self.batch_size}"
            )


def worker_counts(cores: int) -> list[int]:
    """1, 2, 4 ... and the cores themselves."""
    return sorted({cores, *(1 << n for n in range(cores.bit_length()) if 1 << n <= cores)})


def cases(config: BenchConfig, images: Images) -> list[Case]:
    if images.count < config.batch_size:
        must = f"there are only {images.count} images to train on"
        raise ConfigError("batch_size", config.batch_size, must)
    found = [way for way, module in PEERS.items() if installed(module)]
    ways = config.ways or [*ENGINES, *found]
    counts = config.workers or worker_counts(usable_cores())
    size = (config.image_size, config.batch_size, config.seconds)
    shards = "shards", str(images.shards)
    result = [Case(way, n, shards[1], shards[0], *size) for way in ways for n in counts]
    if images.files is not None and "threads" in ways:
        result += [Case("threads", n, str(images.files), "folder", *size) for n in counts]
    return result


def measure_all(todo: Sequence[Case], rounds: int) -> list[Measurement]:
    """The medians of alternating rounds; ways that fail are left out and named."""
    results: dict[Case, list[Result]] = {case: [] for case in todo}
    for number in range(rounds):
        for case in todo if number % 2 == 0 else reversed(todo):
            result = _run(case)
            if result is not None:
                results[case].append(result)
    return [
        Measurement(_name(case), case.workers, _median(found))
        for case, found in results.items()
        if found
    ]


def _run(case: Case) -> Result | None:
    command = [sys.executable, "-m", "benchmarks.pipelines.run_case", json.dumps(asdict(case))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"{_name(case)} with {case.workers}: took over {PATIENCE_S:.0f} s\n")
        return None
    if done.returncode:
        sys.stderr.write(f"{_name(case)} with {case.workers} failed:\n{done.stderr[-2000:]}\n")
        return None
    result = Result(**json.loads(done.stdout.splitlines()[-1]))
    rate = result.images_per_second[-1]
    sys.stderr.write(f"{_name(case):22} workers {case.workers:3}: {rate:7.0f} images/s\n")
    return result


def _median(results: Sequence[Result]) -> Result:
    def each(lists: Sequence[list[float]]) -> list[float]:
        return [statistics.median(values) for values in zip(*lists, strict=True)]

    return Result(
        each([result.images_per_second for result in results]),
        each([result.cpu_ms_per_image for result in results]),
        statistics.median(result.megabytes for result in results),
        statistics.median(result.idle_megabytes for result in results),
    )


def _announcement(cases: int, config: BenchConfig) -> str:
    runs = cases * config.rounds
    minutes = runs * (START_S + 1.5 * config.seconds * len(STAGES)) / 60
    return (
        f"{runs} runs of {len(STAGES)} stages, about {minutes:.0f} minutes; fewer with "
        "ways=[threads,pillow], workers=[4,8] or rounds=1\n"
    )


def _name(case: Case) -> str:
    return ON_FILES if case.format == "folder" else case.way


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main(arguments: Sequence[str]) -> int:
    try:
        config = read_config(arguments)
        root = Path(config.data.root) if config.data.root else None
        with tempfile.TemporaryDirectory(prefix="bench-pipelines-") as work:
            images = prepare(root, config.images, Path(work))
            todo = cases(config, images)
            sys.stderr.write(_announcement(len(todo), config))
            measured = measure_all(todo, config.rounds)
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2
    if not measured:
        sys.stderr.write("bench: nothing could be measured, see above\n")
        return 1
    page = Page(images.described, config.batch_size, config.image_size, config.rounds, measured)
    sys.stdout.write(page.write(Path(config.output)))
    page.write_html(Path(config.output))
    if config.publish:
        page.write(RESULTS / "pipelines")
    return 0


def read_config(arguments: Sequence[str]) -> BenchConfig:
    return check_config(OmegaConf.from_dotlist(list(arguments)), BenchConfig, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
