"""Packs a folder of images into an optimised data set, going on where a killed run stopped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

import custom_op
from entry_point.data.config import usable_cores
from entry_point.data.errors import DataError
from entry_point.data.index import (
    COLUMNS,
    Description,
    Rows,
    Shard,
    Split,
    read_description,
    write_description,
    write_index,
)
from entry_point.data.packing.config import OptimizeConfig
from entry_point.data.packing.listing import Entry, Listing, list_classes, list_splits
from entry_point.data.packing.report import SplitReport, find_duplicates, write_report
from entry_point.data.packing.shard import ShardPacker
from entry_point.data.progress import track

log = logging.getLogger(__name__)

REPORT = "report.json"
_RECORDS = ".records"
_PLAN = ".plan"


@dataclass(frozen=True)
class Plan:
    """All that decides the output's bytes: known before the first image is read."""

    classes: list[str]
    listing: Listing
    fingerprint: str


def pack(source: Path, output: Path, options: OptimizeConfig) -> None:
    """Make `output` from the images of `source`. Raises DataError.

    All is written beside `output` under a hidden name and renamed when complete. Shards that an
    earlier run with the same source and options has finished are taken over.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(output.parent / f".{output.name}.lock"):
        file = output.parent / f".{output.name}.listing"
        with closing(Listing(file, options.seed, options.shard_mb * 1e6)) as listing:
            plan = make_plan(source, listing, options)
            if output.exists():
                _require_same(output, plan)
                log.info("%s is complete already", output)
                return
            unfinished = output.parent / f".{output.name}.unfinished"
            _begin(unfinished, plan)
            _pack_shards(source, unfinished, plan, options)
            _finish(unfinished, plan, options)
            unfinished.rename(output)


def make_plan(source: Path, listing: Listing, options: OptimizeConfig) -> Plan:
    """Fills the listing."""
    classes = list_classes(source, options.classes)
    for split in list_splits(source):
        listing.add(source, split, classes, whole=options.classes is None)
    what = asdict(options) | {"source": None, "output": None, "workers": None}
    content = json.dumps([what, classes, listing.fingerprint])
    return Plan(classes, listing, hashlib.sha256(content.encode()).hexdigest())


def _require_same(output: Path, plan: Plan) -> None:
    if read_description(output).made_from != plan.fingerprint:
        raise DataError(
            f"output={output} holds a data set made from other files or with other options: "
            "remove it or choose another folder"
        )


def _begin(unfinished: Path, plan: Plan) -> None:
    note = unfinished / _PLAN
    if not note.is_file() or note.read_text() != plan.fingerprint:
        if unfinished.exists():
            log.info("removing %s, begun with other files or options", unfinished)
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        note.write_text(plan.fingerprint)
    for split in plan.listing.splits:
        (unfinished / split).mkdir(exist_ok=True)
    (unfinished / _RECORDS).mkdir(exist_ok=True)


def _pack_shards(source: Path, unfinished: Path, plan: Plan, options: OptimizeConfig) -> None:
    custom_op.load()
    workers = options.workers or usable_cores()

    def files_done() -> Iterator[int]:
        with ThreadPoolExecutor(workers) as pool:
            for split, number, entries, record in _shards(unfinished, plan):
                if record.is_file():
                    yield from (1 for _ in entries)
                    continue
                packer = ShardPacker(source, unfinished / split, options, pool, workers)
                yield from packer.pack(_shard_name(options.part, number), entries, record)

    for _ in track(files_done(), len(plan.listing), "packing"):
        pass


def _finish(unfinished: Path, plan: Plan, options: OptimizeConfig) -> None:
    """Index, description and report from the records; the records go."""
    reports = {split: SplitReport() for split in plan.listing.splits}
    splits = {}
    for split in plan.listing.splits:
        shards: list[Shard] = []
        rows = _split_rows(unfinished, plan, options, split, reports[split], shards)
        splits[split] = Split(shards, write_index(unfinished / split, rows))
    description = Description(plan.classes, splits, plan.fingerprint, options.output_format)
    duplicates = find_duplicates({split: unfinished / split for split in splits})
    write_report(unfinished / REPORT, reports, duplicates, options.quality)
    write_description(unfinished, description)
    _announce(reports, duplicates["files"])
    shutil.rmtree(unfinished / _RECORDS)
    (unfinished / _PLAN).unlink()
    os.sync()


def _split_rows(
    unfinished: Path,
    plan: Plan,
    options: OptimizeConfig,
    split: str,
    report: SplitReport,
    shards: list[Shard],
) -> Iterator[Rows]:
    """Index rows, a shard at a time; fills `report` and `shards` on the way."""
    for number in range(plan.listing.shards(split)):
        name = _shard_name(options.part, number)
        records = json.loads(_record_file(unfinished, split, number).read_text())
        for record in records:
            report.add(record, plan.classes)
        samples = [record for record in records if "rejected" not in record]
        file = unfinished / split / name
        size = file.stat().st_size if options.output_format == "shards" else 0
        shards.append(Shard(name, size, len(samples)))
        for sample in samples:
            sample["shard"] = number
        yield {column: [sample[column] for sample in samples] for column in COLUMNS}


def _announce(reports: dict[str, SplitReport], duplicates: int) -> None:
    for split, report in reports.items():
        for line in report.lines(split):
            log.info("%s", line)
    log.info("%d files repeat the bytes of another; all of it in %s", duplicates, REPORT)


def _shards(folder: Path, plan: Plan) -> Iterator[tuple[str, int, list[Entry], Path]]:
    """Split, number, entries and record file of every shard of the plan."""
    for split in plan.listing.splits:
        for number in range(plan.listing.shards(split)):
            entries = plan.listing.entries(split, number)
            yield split, number, entries, _record_file(folder, split, number)


def _record_file(folder: Path, split: str, number: int) -> Path:
    return folder / _RECORDS / f"{split}-{number:06d}.json"


def _shard_name(part: int, number: int) -> str:
    return f"shard-{part:02d}-{number:06d}.tar"
