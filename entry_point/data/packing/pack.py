"""Packs a folder of images into an optimized dataset; a killed run resumes at its next shard."""

from __future__ import annotations

import errno
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import custom_op
from entry_point.config.data_config import usable_cores
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.duplicates import find_duplicates
from entry_point.data.packing.listing import Listing
from entry_point.data.packing.output_folder import beside, is_complete, locked, publish
from entry_point.data.packing.packing_plan import PackingPlan, make_plan
from entry_point.data.packing.packing_report import Report, SplitReport
from entry_point.data.packing.shard_packer import ShardPacker
from entry_point.data.packing.work_folder import ShardRecord, WorkFolder
from entry_point.data.progress_bar import track
from entry_point.data.sources.dataset_description import (
    Description,
    Shard,
    Split,
    write_description,
)
from entry_point.data.sources.index import COLUMNS, Rows, write_index

log = logging.getLogger(__name__)


def pack(source: Path, output: Path, options: OptimizeConfig, is_part: bool = False) -> None:
    """Make `output` from the images of `source`. Raises DataError and OSError.

    Everything is written to a hidden folder beside `output`, which is renamed when complete. A run
    with the same source and options reuses the finished shards of an interrupted one. Every split
    must have images unless the output `is_part` of a dataset.
    """
    with locked(output):
        file = beside(output, "listing")
        try:
            with closing(Listing(file, options.seed, options.shard_mb * 1e6)) as listing:
                plan = make_plan(source, listing, options)
                _pack(plan, source, output, options, is_part)
        except sqlite3.Error as error:
            reason = f"{error}: free up space and run the same command again"
            raise OSError(errno.EIO, reason, f"{file} (the list of source files)") from error


def _pack(
    plan: PackingPlan, source: Path, output: Path, options: OptimizeConfig, is_part: bool
) -> None:
    work = WorkFolder(beside(output, "unfinished"))
    if is_complete(output, plan.fingerprint):
        shutil.rmtree(work.root, ignore_errors=True)  # left by a run killed after its rename
        return
    if plan.left_out:
        log.warning(
            "%s: ignored, only train and val are packed: %s", source, ", ".join(plan.left_out[:5])
        )
    work.prepare(plan.fingerprint, plan.listing.shards)
    _pack_shards(source, work, plan, options)
    report, description = _describe(work, plan, options)
    report.finish(work.data, options.output_format, is_part)
    write_description(work.data, description)
    publish(work.data, output)


def _pack_shards(
    source: Path, work: WorkFolder, plan: PackingPlan, options: OptimizeConfig
) -> None:
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


def _describe(
    work: WorkFolder, plan: PackingPlan, options: OptimizeConfig
) -> tuple[Report, Description]:
    """Write the indexes from the shards' records."""
    report = Report(plan.classes, left_out=plan.left_out, quality_of_converted=[options.quality])
    splits = {}
    for split in plan.listing.shards:
        shards: list[Shard] = []
        rows = _split_rows(work, plan, split, report.split(split), shards)
        splits[split] = Split(shards, write_index(work.data / split, rows))
    report.duplicates = find_duplicates({split: work.data / split for split in splits})
    return report, Description(plan.classes, splits, plan.fingerprint, options.output_format)


def _split_rows(
    work: WorkFolder, plan: PackingPlan, split: str, report: SplitReport, shards: list[Shard]
) -> Iterator[Rows]:
    """The index rows of one shard after another; also fills `report` and `shards`."""
    for number in range(len(plan.listing.shards[split])):
        record = ShardRecord.read(work.record(split, number))
        for row in record.rows:
            report.add(row, plan.classes)
        samples = [row | {"shard": number} for row in record.rows if "rejected" not in row]
        name = plan.shard_name(number)
        shards.append(Shard(name, record.made.get(name, 0), len(samples)))
        yield {column: [sample[column] for sample in samples] for column in COLUMNS}
