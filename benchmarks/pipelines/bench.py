"""Every pipeline engine on your data and machine: `make bench`.

    python -m benchmarks.pipelines.bench [data.root=PATH] [seconds=0.5] [rounds=2] ...

Each engine runs with one worker and with as many as there are cores; what it is compared with, only
with as many. Each run is a new process, and rounds alternate. The medians go into a page
and a plot under `output`, with the recommended settings. publish=true also writes
docs/results/pipelines.md and its pictures, and first compares what other loaders deliver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from pydantic import Field
from pydantic.dataclasses import dataclass

from benchmarks.measure import PLOTS, RESULTS, installed, turns
from benchmarks.pipelines.compare import Compared, compare, references
from benchmarks.pipelines.images import Images, prepare, write_phone_photographs
from benchmarks.pipelines.page import PHONES_BATCH, Page, write_pictures
from benchmarks.pipelines.peers import PEERS, TURBOLOADER
from benchmarks.pipelines.run_case import DALI_READER, Case, Result
from benchmarks.pipelines.table import ENGINES, ON_FILES, ON_INDEXED, Measurement
from entry_point.config.augment_config import AugmentConfig
from entry_point.config.checking import check_config
from entry_point.config.compose import set_values
from entry_point.config.config_errors import ConfigError, did_you_mean
from entry_point.config.overrides import parse_overrides
from entry_point.config.schema import SETTINGS, Bool, Count, Int, Positive
from entry_point.config.usage import print_settings
from entry_point.data.errors import DataError
from entry_point.job.cores import usable_cores
from entry_point.job.program import asks_for_help
from entry_point.job.text import counted, duration

MODULES = {
    "dali": "nvidia.dali",
    DALI_READER: "nvidia.dali",
    "spdl.io": "spdl.io",
    **{name: peer.module for name, peer in PEERS.items()},
}
"""What must be installed to measure the others."""
ALWAYS = tuple(engine for engine in ENGINES if engine not in MODULES)
NEED_FILES = (DALI_READER, *PEERS)
"""They read plain files, or formats of their own that are written from them."""
PATIENCE_S = 300.0
INTERRUPTED = 128 + signal.SIGINT


@dataclass(config=SETTINGS)
class Data:
    root: str | None = None
    """Any dataset with JPEGs; null: the demo."""


@dataclass(config=SETTINGS)
class BenchConfig:
    data: Data = Field(default_factory=Data)
    image_size: Int = Field(default=224, ge=8, le=4096)
    """Height and width of a sample in pixels."""
    batch_size: Count = 32
    """Images per batch."""
    images: Count = 1000
    """The number of images to pack and read from a folder."""
    ways: list[str] | None = None
    """null: all engines, and of the loaders of `peers.py`, DALI and spdl.io those installed."""
    workers: list[Count] | None = None
    """null: the number of usable cores, for engines also 1; with `publish`, for all also 1, 2, 4
    ..."""
    seconds: Positive = 0.5
    """Duration of each stage of each run, after a warm-up of half that."""
    rounds: Count = 2
    """How often each run is repeated; the tables have the medians."""
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    """Policies of training, as in `augment.name=trivial`. Other loaders are left out."""
    output: str = "runs/bench/pipelines"
    """The files of the result, without their suffixes."""
    publish: Bool = False
    """Also measure photographs of 12 megapixels and all peers, and write docs/results/pipelines.md
    and its pictures."""

    def __post_init__(self) -> None:
        for way in self.ways or ():
            if way not in (known := (*ALWAYS, *MODULES)):
                message = f"must be one of {', '.join(known)}{did_you_mean(way, known)}"
                raise ConfigError("ways", way, message)
        every = self.publish and self.ways is None
        if every and (missing := [p for p in PEERS if not installed(PEERS[p].module)]):
            message = f'needs {", ".join(missing)}: run `make setup EXTRAS="dev bench"` first'
            raise ConfigError("publish", self.publish, message)
        if self.images < self.batch_size:
            raise ConfigError(
                "images", self.images, f"must be at least batch_size={self.batch_size}"
            )
        if self.augment.own and self.augment.per == "batch":
            message = "augments batches on the device, which is not measured; use a policy"
            raise ConfigError("augment.name", self.augment.name, message)
        if self.augment.on_samples and (peers := sorted(MODULES.keys() & set(self.ways or ()))):
            message = f"cannot take augment.name={self.augment.name}; remove it"
            raise ConfigError("ways", peers[0], message)


def worker_counts(cores: int) -> list[int]:
    """1, 2, 4 ... and the number of cores."""
    return sorted({cores, *(1 << n for n in range(cores.bit_length()) if 1 << n <= cores)})


def cases(config: BenchConfig, images: Images) -> list[Case]:
    if images.count < config.batch_size:
        message = f"must be at most the number of training images, {images.count}"
        raise ConfigError("batch_size", config.batch_size, message)
    augments = config.augment.on_samples
    found = [way for way, module in MODULES.items() if installed(module) and not augments]
    if images.files is None:
        found = [way for way in found if way not in NEED_FILES]
    ways = config.ways or [*ALWAYS, *found]
    cores = usable_cores()
    given = config.workers or (worker_counts(cores) if config.publish else None)
    of_engines, of_others = given or sorted({1, cores}), given or [cores]
    augment = json.dumps(asdict(config.augment))
    size = (config.image_size, config.batch_size, config.seconds, augment)
    if images.files is None and (need := sorted(set(NEED_FILES) & set(ways))):
        message = f"cannot have {need[0]}, which reads plain files: the data is packed; remove it"
        raise ConfigError("ways", config.ways, message)
    result = []
    for way in ways:
        root, kind = (images.files, "folder") if way in NEED_FILES else (images.shards, "shards")
        root = images.shards.with_name(way) if way in PEERS else root
        counts = of_engines if way in ENGINES else of_others
        counts = [cores] if way == TURBOLOADER else counts  # it uses all of them in any case
        result += [Case(way, n, str(root), kind, *size) for n in counts]
    others = ((ON_INDEXED, images.indexed), (ON_FILES, images.files))
    for shown, root in others if "threads" in ways else ():
        if root is not None:
            result += [Case("threads", n, str(root), "folder", *size, shown) for n in of_others]
    return result


def measure_phones(
    config: BenchConfig, work: Path
) -> tuple[list[Measurement], dict[str, Compared]]:
    """This template and others on photographs of 12 megapixels, with all cores."""
    files = write_phone_photographs(work / "phones")
    images = prepare(files, config.images, work / "large")
    ways = ["threads", "imagefolder", "torchcodec", TURBOLOADER, "pillow"]
    small = replace(config, ways=ways, workers=[usable_cores()], batch_size=PHONES_BATCH)
    todo = [case for case in cases(small, images) if not case.shown]
    write_formats(todo, files)
    todo, compared = agreeing(todo, files)
    measured, _ = measure_all(todo, config.rounds, needs_all=True)
    return measured, {f"{way}, 12 megapixels": one for way, one in compared.items()}


def agreeing(todo: Sequence[Case], files: Path) -> tuple[list[Case], dict[str, Compared]]:
    """Returns the cases without peers whose images or labels are wrong; and each comparison."""
    reference = references(files, todo[0].image_size)
    found: dict[str, Compared] = {}
    for case in todo:
        if case.way in PEERS and case.way not in found:
            found[case.way] = compare(case.way, Path(case.root), case.batch_size, reference)
    return [case for case in todo if case.way not in found or found[case.way].agrees], found


def write_formats(todo: Sequence[Case], files: Path) -> None:
    """Write what the peers among the cases read."""
    for way, root in {case.way: case.root for case in todo if case.way in PEERS}.items():
        PEERS[way].write(files, Path(root))


def measure_all(
    todo: Sequence[Case], rounds: int, needs_all: bool = False
) -> tuple[list[Measurement], int]:
    """Returns the medians of alternating rounds, without the cases that failed; and how many runs
    Ctrl-C has left out.

    With `needs_all`, the first failure raises DataError, and Ctrl-C ends the program.
    """
    results: dict[Case, list[Result]] = {case: [] for case in todo}
    order = turns(todo, rounds)
    done, started = 0, time.monotonic()
    try:
        for case in order:
            result = _run(case)
            done += 1
            if result is not None:
                results[case].append(result)
            elif needs_all:
                raise DataError("not published, as the case above failed")
            left = (time.monotonic() - started) / done * (len(order) - done)
            _say(f"{done} of {len(order)} runs, {duration(left)} left")
    except KeyboardInterrupt:
        if needs_all:
            raise
    medians = [
        Measurement(_name(case), case.workers, _median(found))
        for case, found in results.items()
        if found
    ]
    return medians, len(order) - done


def _run(case: Case) -> Result | None:
    command = [sys.executable, "-m", "benchmarks.pipelines.run_case", json.dumps(asdict(case))]
    # A block in malloc's per-thread cache does not merge with its free neighbors. By chance, that
    # makes a process take over a gigabyte more, and spend most of its time on page faults.
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
        )
    except subprocess.TimeoutExpired:
        _say(f"{_name(case)} with {case.workers}: took over {PATIENCE_S:.0f} s")
        return None
    if done.returncode:
        _say(f"{_name(case)} with {case.workers} failed:\n{done.stderr[-2000:]}")
        return None
    result = Result(**json.loads(done.stdout.splitlines()[-1]))
    rate = result.images_per_second[-1]
    _say(f"{_name(case):24} workers {case.workers:3}: {rate:7.0f} images/s")
    return result


def _median(results: Sequence[Result]) -> Result:
    """Returns the median of each figure."""
    rounds = [asdict(result) for result in results]
    figures = {name: np.median([one[name] for one in rounds], 0).tolist() for name in rounds[0]}
    return Result(**figures)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _name(case: Case) -> str:
    return case.shown or case.way


def measure(config: BenchConfig, work: Path) -> tuple[Page, int]:
    """Returns the results, and how many runs Ctrl-C has left out."""
    images = prepare(Path(config.data.root) if config.data.root else None, config.images, work)
    todo = cases(config, images)
    compared: dict[str, Compared] = {}
    phones: list[Measurement] = []
    if images.files is not None:
        write_formats(todo, images.files)
        if config.publish:
            todo, compared = agreeing(todo, images.files)
    _say(
        f"{len(todo) * config.rounds} runs; shorten with ways=[threads,pillow], workers=[4,8] or "
        "rounds=1; Ctrl-C shows what was measured until then"
    )
    measured, left_out = measure_all(todo, config.rounds, needs_all=config.publish)
    if config.publish:
        phones, of_phones = measure_phones(config, work)
        compared |= of_phones
    described = images.described
    if augment := config.augment.describe():
        described += f"; augment: {augment}"
    if left_out:
        described += f"; stopped by Ctrl-C, {counted(left_out, 'run')} missing"
    size = (config.batch_size, config.image_size, config.rounds)
    return Page(described, *size, measured, phones, compared), left_out


def main(arguments: Sequence[str]) -> int:
    if asks_for_help(arguments, __doc__):
        return print_settings(BenchConfig, "benchmarks/pipelines/bench.py")
    try:
        config = read_config(arguments)
        with tempfile.TemporaryDirectory(prefix="bench-pipelines-") as work:
            # LitData and MosaicML Streaming leave files there.
            tempfile.tempdir = os.environ["TMPDIR"] = work
            page, left_out = measure(config, Path(work))
    except (ConfigError, DataError) as error:
        _say(f"bench: {error}")
        return 2
    if not page.measured:
        _say("bench: stopped before the first result" if left_out else "bench: every run failed")
        return INTERRUPTED if left_out else 1
    output = Path(config.output)
    sys.stdout.write(page.write(output, output.parent))
    if config.publish:
        page.write(RESULTS / "pipelines", PLOTS)
        write_pictures(page.measured, page.phones, PLOTS)
    return INTERRUPTED if left_out else 0


def read_config(arguments: Sequence[str]) -> BenchConfig:
    config = OmegaConf.create()
    set_values(config, parse_overrides(arguments), BenchConfig)
    return check_config(OmegaConf.to_container(config), BenchConfig)


if __name__ == "__main__":
    # As an exception, it removes the copies of the images.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
