"""Packs a folder of images into an optimized dataset; a killed run resumes at its next shard."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
import sqlite3
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import custom_op
from entry_point.config.data_config import usable_cores
from entry_point.config.packing_config import OptimizeConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.packing.contents import Contents, contents_of
from entry_point.data.packing.duplicates import find_duplicates
from entry_point.data.packing.listing import Listing
from entry_point.data.packing.output_folder import beside, is_complete, locked, publish
from entry_point.data.packing.packing_report import Report, SplitReport
from entry_point.data.packing.shard_packer import ShardPacker
from entry_point.data.packing.work_folder import ShardRecord, WorkFolder
from entry_point.data.progress_bar import track
from entry_point.data.sources.class_folders import FOLDER_INDEX
from entry_point.data.sources.dataset_description import (
    VERSION,
    Description,
    Shard,
    Split,
    write_description,
)
from entry_point.data.sources.folder_index import IndexedFile, write_folder_index
from entry_point.data.sources.packed.index import COLUMNS, Rows
from entry_point.data.sources.packed.index_writer import write_index

log = logging.getLogger(__name__)

_IN_LISTING = ("images", "table", "val_fraction")
"""Options that decide nothing but which files are listed, with which labels."""


@dataclass(frozen=True)
class PackingPlan:
    """Everything that determines the output's bytes, known before the first image is read."""

    contents: Contents
    options: OptimizeConfig
    listing: Listing
    fingerprint: str
    """Hash of the list of source files and the options."""

    def shard_name(self, number: int) -> str:
        return f"shard-{self.options.part:02d}-{number:06d}.tar"


def pack(source: Path, output: Path, options: OptimizeConfig, is_part: bool = False) -> None:
    """Make `output` from the images of `source`. Raises DataError and OSError.

    Everything is written to a hidden folder beside `output`, which is renamed when complete. A run
    with the same source and options reuses the finished shards of an interrupted one. Every split
    must have images unless the output `is_part` of a dataset.
    """
    if output.resolve().is_relative_to(source.resolve()):
        raise DataError(
            f"output={output} lies in source={source}, which packing must not change: choose "
            "another folder"
        )
    with locked(output):
        file = beside(output, "listing")
        try:
            with closing(Listing(file, options.seed, options.shard_mb * 1e6)) as listing:
                _pack(_make_plan(source, listing, options), output, is_part)
        except sqlite3.Error as error:
            reason = f"{error}: free up space and run the same command again"
            raise OSError(errno.EIO, reason, f"{file} (the list of source files)") from error


def _make_plan(source: Path, listing: Listing, options: OptimizeConfig) -> PackingPlan:
    """List all files of `source` in `listing`."""
    contents = contents_of(source, options)
    for split in contents.splits:
        listing.add(split, contents.entries(split))
    relevant = asdict(options) | {"source": None, "output": None, "workers": None}
    for key in _IN_LISTING:
        del relevant[key]
    content = json.dumps([VERSION, relevant, contents.classes, listing.fingerprint])
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    return PackingPlan(contents, options, listing, fingerprint)


def _pack(plan: PackingPlan, output: Path, is_part: bool) -> None:
    work = WorkFolder(beside(output, "unfinished"))
    if is_complete(output, plan.fingerprint):
        shutil.rmtree(work.root, ignore_errors=True)  # left by a run killed after its rename
        return
    contents = plan.contents
    report = Report(contents.classes, contents.kind, left_out=contents.left_out)
    if names := ", ".join(report.left_out[:5]):
        log.warning(
            "%s: only train and val are packed, ignored: %s", contents.root, printable(names)
        )
    work.prepare(plan.fingerprint, plan.listing.shards)
    _pack_shards(plan, work)
    description = _describe(plan, work, report)
    report.finish(work.data, plan.options.output_format, is_part)
    write_description(work.data, description)
    publish(work.data, output)


def _pack_shards(plan: PackingPlan, work: WorkFolder) -> None:
    custom_op.load()
    workers = plan.options.workers or usable_cores()
    shards = [(split, i) for split, cuts in plan.listing.shards.items() for i in range(len(cuts))]
    left = [shard for shard in shards if not work.is_done(*shard)]
    files_left = sum(len(plan.listing.entries(*shard)) for shard in left)

    def files_done() -> Iterator[int]:
        with ThreadPoolExecutor(workers) as pool:
            for split, number in left:
                packer = ShardPacker(plan.contents, work.data / split, plan.options, pool, workers)
                entries = plan.listing.entries(split, number)
                yield from packer.pack(plan.shard_name(number), entries, work.record(split, number))

    total = len(plan.listing)
    for _ in track(files_done(), total, "packing", done=total - files_left):
        pass


def _describe(plan: PackingPlan, work: WorkFolder, report: Report) -> Description:
    """Write the indexes from the shards' records; fills `report`."""
    report.quality_of_converted = [plan.options.quality]
    splits = {}
    for split in plan.listing.shards:
        shards: list[Shard] = []
        rows = _split_rows(plan, work, split, report.split(split), shards)
        splits[split] = Split(shards, *write_index(work.data / split, rows, plan.contents.kind))
    if plan.options.output_format == "folder":
        write_folder_index(work.data / FOLDER_INDEX, _plain_files(plan, work))
    report.duplicates = find_duplicates({split: work.data / split for split in splits})
    contents, options = plan.contents, plan.options
    return Description(
        contents.classes, splits, plan.fingerprint, options.output_format, contents.kind
    )


def _split_rows(
    plan: PackingPlan, work: WorkFolder, split: str, report: SplitReport, shards: list[Shard]
) -> Iterator[Rows]:
    """The index rows of one shard after another; fills `report` and `shards`."""
    for number in range(len(plan.listing.shards[split])):
        record = ShardRecord.read(work.record(split, number))
        for row in record.rows:
            report.add(row, plan.contents)
        samples = [row | {"shard": number} for row in record.rows if "rejected" not in row]
        name = plan.shard_name(number)
        shards.append(Shard(name, record.made.get(name, 0), len(samples)))
        rows: Rows = {column: [sample[column] for sample in samples] for column in COLUMNS}
        if plan.options.output_format == "shards":
            rows["index"] = [b64decode(sample["index"]) for sample in samples]
        yield rows


def _plain_files(plan: PackingPlan, work: WorkFolder) -> Iterator[list[IndexedFile]]:
    """The files of each shard that was written as plain files."""
    for split, shards in plan.listing.shards.items():
        for number in range(len(shards)):
            rows = ShardRecord.read(work.record(split, number)).rows
            yield [
                IndexedFile(f"{split}/{row['key']}.jpg", row["length"], b64decode(row["index"]))
                for row in rows
                if "rejected" not in row
            ]
