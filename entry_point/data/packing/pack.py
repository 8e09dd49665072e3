"""Packs a folder of images into an optimised data set, going on where a killed run stopped."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import custom_op
from entry_point.config.data_config import usable_cores
from entry_point.config.packing_config import OptimizeConfig
from entry_point.contract.whole_file import write_text
from entry_point.data.packing.listing import Listing
from entry_point.data.packing.output import beside, is_complete, locked, publish
from entry_point.data.packing.packing_report import Report, SplitReport, find_duplicates
from entry_point.data.packing.record import Record
from entry_point.data.packing.shard_packer import ShardPacker
from entry_point.data.packing.source_files import left_out, list_classes, list_splits
from entry_point.data.progress_bar import track
from entry_point.data.sources.index import (
    COLUMNS,
    VERSION,
    Description,
    Rows,
    Shard,
    Split,
    write_description,
    write_index,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """All that decides the output's bytes: known before the first image is read."""

    classes: list[str]
    listing: Listing
    fingerprint: str
    left_out: list[str]
    part: int
    whole: bool

    def shards(self) -> Iterator[tuple[str, int]]:
        """Split and number of each."""
        for split in self.listing.splits:
            yield from ((split, number) for number in range(self.listing.shards(split)))

    def shard_name(self, number: int) -> str:
        return f"shard-{self.part:02d}-{number:06d}.tar"


@dataclass(frozen=True)
class Work:
    """What stands beside the output until it is complete, to go on from."""

    folder: Path

    @property
    def data(self) -> Path:
        """What becomes the output."""
        return self.folder / "data"

    @property
    def plan(self) -> Path:
        return self.folder / "plan"

    def record(self, split: str, number: int) -> Path:
        return self.folder / "records" / f"{split}-{number:06d}.json"

    def is_done(self, split: str, number: int) -> bool:
        try:
            return Record.read(self.record(split, number)).holds(self.data / split)
        except (FileNotFoundError, ValueError):  # not there yet, or cut short
            return False

    def begin(self, plan: Plan) -> None:
        if not self.plan.is_file() or self.plan.read_text("utf-8") != plan.fingerprint:
            if self.folder.exists():
                log.info("removing %s, begun with other files or options", self.folder)
                shutil.rmtree(self.folder)
            self.folder.mkdir()
            write_text(self.plan, plan.fingerprint)
        for split in plan.listing.splits:
            (self.data / split).mkdir(parents=True, exist_ok=True)
        (self.folder / "records").mkdir(exist_ok=True)


def pack(source: Path, output: Path, options: OptimizeConfig, whole: bool = True) -> None:
    """Make `output` from the images of `source`. Raises DataError and OSError.

    Every split of a `whole` data set must have images; a part of one need not.

    All is written beside `output` under a hidden name and renamed when complete. Shards that an
    earlier run with the same source and options has finished are taken over.
    """
    with locked(output):
        file = beside(output, "listing")
        try:
            with closing(Listing(file, options.seed, options.shard_mb * 1e6)) as listing:
                _pack(make_plan(source, listing, options, whole), source, output, options)
        except sqlite3.Error as error:
            reason = f"{error}: free up space and run the same command again"
            raise OSError(errno.EIO, reason, f"{file}, the list of all files") from error


def make_plan(source: Path, listing: Listing, options: OptimizeConfig, whole: bool) -> Plan:
    """Fills the listing."""
    classes = list_classes(source, options.classes)
    for split in list_splits(source):
        listing.add(source, split, classes, whole=options.classes is None)
    what = asdict(options) | {"source": None, "output": None, "workers": None}
    content = json.dumps([VERSION, what, classes, listing.fingerprint])
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    return Plan(classes, listing, fingerprint, left_out(source), options.part, whole)


def _pack(plan: Plan, source: Path, output: Path, options: OptimizeConfig) -> None:
    work = Work(beside(output, "unfinished"))
    if is_complete(output, plan.fingerprint):
        shutil.rmtree(work.folder, ignore_errors=True)  # of a run killed as it ended
        return
    if plan.left_out:
        log.warning("%s holds more, which is not packed: %s", source, ", ".join(plan.left_out[:5]))
    work.begin(plan)
    _pack_shards(source, work, plan, options)
    _finish(work, plan, options)
    publish(work.data, output)


def _pack_shards(source: Path, work: Work, plan: Plan, options: OptimizeConfig) -> None:
    custom_op.load()
    workers = options.workers or usable_cores()
    left = [shard for shard in plan.shards() if not work.is_done(*shard)]
    files_left = sum(len(plan.listing.entries(*shard)) for shard in left)

    def files_done() -> Iterator[int]:
        with ThreadPoolExecutor(workers) as pool:
            for split, number in left:
                packer = ShardPacker(source, work.data / split, options, pool, workers)
                entries = plan.listing.entries(split, number)
                yield from packer.pack(plan.shard_name(number), entries, work.record(split, number))

    total = len(plan.listing)
    for _ in track(files_done(), total, "packing", done=total - files_left):
        pass


def _finish(work: Work, plan: Plan, options: OptimizeConfig) -> None:
    """Index, description and report from the records."""
    report = Report(plan.classes, left_out=plan.left_out, quality_of_converted=[options.quality])
    splits = {}
    for split in plan.listing.splits:
        shards: list[Shard] = []
        rows = _split_rows(work, plan, split, report.split(split), shards)
        splits[split] = Split(shards, write_index(work.data / split, rows))
    report.duplicates = find_duplicates({split: work.data / split for split in splits})
    report.write(work.data)
    for line in report.lines():
        log.info("%s", line)
    if plan.whole:
        report.require_readable(options.output_format)
    description = Description(plan.classes, splits, plan.fingerprint, options.output_format)
    write_description(work.data, description)


def _split_rows(
    work: Work, plan: Plan, split: str, report: SplitReport, shards: list[Shard]
) -> Iterator[Rows]:
    """Index rows, a shard at a time; fills `report` and `shards` on the way."""
    for number in range(plan.listing.shards(split)):
        record = Record.read(work.record(split, number))
        for row in record.rows:
            report.add(row, plan.classes)
        samples = [row for row in record.rows if "rejected" not in row]
        name = plan.shard_name(number)
        shards.append(Shard(name, record.made.get(name, 0), len(samples)))
        for sample in samples:
            sample["shard"] = number
        yield {column: [sample[column] for sample in samples] for column in COLUMNS}
