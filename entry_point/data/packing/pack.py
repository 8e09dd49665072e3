"""Packs the images of a source into shards; a killed run resumes at its next shard.

A run packs one part of the dataset. Parts of the same source take its shards in turn, so together
they make the files that one run makes; each describes only its own.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

import custom_op
from entry_point.config.data_config import usable_cores
from entry_point.config.packing_config import OptimizeConfig, Part
from entry_point.contract.printable import printable
from entry_point.contract.whole_file import whole_file, write_text
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.errors import DataError
from entry_point.data.packing.encode import Encoded, RejectedError, encode
from entry_point.data.packing.output_folder import locked
from entry_point.data.packing.scan import Contents, File, Listing, contents_of
from entry_point.data.progress_bar import track
from entry_point.data.sources.dataset_description import (
    Description,
    Shard,
    Split,
    member,
    read_parts,
    require_alike,
    write_description,
)
from entry_point.data.sources.file_bytes import crc32
from entry_point.data.sources.index_file import IndexFile, IndexWriter
from entry_point.data.sources.shards import LABEL_END, columns_of

_AHEAD_PER_WORKER = 4
_COUNTS = "counts"
"""The column of a record with what is not in the index."""
_SETTINGS = ("max_side", "quality", "shard_mb")
_SEED = 0
"""Of the shuffle before packing."""
"""What decides about the bytes of a shard, besides its files."""

log = logging.getLogger(__name__)


def pack(
    source: Path,
    output: Path,
    options: OptimizeConfig,
    part: Part | None = None,
    own_files: bool = False,
) -> None:
    """Add a part of the images of `source` to `output`; by default, all are the only part.

    A part with `own_files` packs all of `source`, which holds only its share. Everything is written
    to a hidden folder in `output`, whose files move to their place when all are complete. A run
    with the same source and options reuses the finished shards of an interrupted one. Every split
    of an only part must have images. Raises DataError and OSError.
    """
    if output.resolve().is_relative_to(source.resolve()):
        raise DataError(
            f"output={output} lies in source={source}, which packing must not change: choose "
            "another folder"
        )
    part = part or Part()
    is_new = not output.exists()
    try:
        with locked(output / part.description):
            plan = _make_plan(source, options, part, own_files)
            _pack(plan, output, output / f".{part.name('unfinished', '')}")
    finally:
        if is_new and output.is_dir() and not any(output.iterdir()):  # nothing could be packed
            output.rmdir()


@dataclass(frozen=True)
class PackingPlan:
    """Everything that determines the output's bytes, known before the first image is read."""

    contents: Contents
    options: OptimizeConfig
    listings: dict[str, Listing]
    """By split."""
    description: Description
    """Of the part, without its splits."""

    def shards(self, split: str) -> list[int]:
        """Numbers of the part's shards."""
        part, every = self.description.part, range(len(self.listings[split].shards))
        return list(every if self.description.own_files else every[part.number - 1 :: part.count])

    def shard_name(self, number: int) -> str:
        prefix = f"{self.description.part.padded}-" if self.description.own_files else ""
        return f"shard-{prefix}{number:06d}.tar"


def _make_plan(source: Path, options: OptimizeConfig, part: Part, own_files: bool) -> PackingPlan:
    """List all files of `source`."""
    contents = contents_of(source, options, share=own_files)
    listings = {
        split: Listing(contents.entries(split), _SEED, options.shard_mb * 1e6)
        for split in contents.splits
    }
    files, times = hashlib.sha256(json.dumps(contents.classes).encode()), hashlib.sha256()
    for split, listing in listings.items():
        files.update(split.encode())
        listing.add_to(files, times)
    description = Description(
        contents.classes,
        {},
        files.hexdigest(),
        times.hexdigest(),
        {name: getattr(options, name) for name in _SETTINGS},
        contents.kind,
        part,
        own_files,
    )
    return PackingPlan(contents, options, listings, description)


def _pack(plan: PackingPlan, output: Path, folder: Path) -> None:
    if _is_complete(plan.description, output):
        shutil.rmtree(folder, ignore_errors=True)  # left by a run killed at its very end
        return
    work = Work(plan, folder)
    work.prepare()
    work.pack_shards()
    splits = {split: work.finish_split(split) for split in plan.listings}
    part = plan.description.part
    report = work.data / part.name("report", ".json")
    content = {"splits": {name: made.report for name, made in splits.items()}}
    with whole_file(report) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False).encode())
    for split, made in splits.items():
        _log(split, made.report)
        if part.count == 1:
            _require_images(split, made.report)
    log.info("%s lists all rejected files", report.name)
    described = {name: made.described for name, made in splits.items()}
    write_description(folder, replace(plan.description, splits=described))
    _publish(work, output, part.description)
    shutil.rmtree(folder)


def _is_complete(description: Description, output: Path) -> bool:
    """Whether the part is already made. Raises DataError if `output` holds anything but parts."""
    parts = read_parts(output)
    for made in parts:
        if made.part != description.part:
            continue
        if made != replace(description, splits=made.splits):
            raise DataError(
                f"output={output} holds a dataset made from other files or with other options: "
                "remove it or choose another folder"
            )
        log.info("%s is already complete", output / made.part.description)
        return True
    if parts:
        require_alike(output, [*parts, description])
    elif any(output.glob("[!.]*")) and not any(output.glob(".unfinished*")):
        raise DataError(f"output={output} holds other files: choose another folder")
    return False


def _publish(work: Work, output: Path, description: str) -> None:
    """Move all files to their place; the description, which makes them a dataset, comes last.

    If it is killed, some are moved already, and the next run moves the others.
    """
    for file in [each for each in work.data.rglob("*") if each.is_file()]:
        target = output / file.relative_to(work.data)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    os.sync()
    (work.root / description).replace(output / description)
    os.sync()


# What became of the files


@dataclass
class Counts:
    """What became of the source files of a shard, or of a split."""

    how: Counter[str] = field(default_factory=Counter)
    """Images by `Encoded.how`."""
    notes: Counter[str] = field(default_factory=Counter)
    """Why images have no side index, what converted ones lost, and what libjpeg warns about."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Path and reason of every file that was not packed."""
    bytes_before: int = 0
    bytes_after: int = 0

    def add(self, image: Encoded, source_bytes: int) -> None:
        self.how[image.how] += 1
        notes = filter(None, (image.note, *image.warnings))
        self.notes.update(f"{image.how}: {note}" for note in notes)
        self.bytes_before += source_bytes
        self.bytes_after += len(image.data)

    def add_shard(self, shard: Counts) -> None:
        self.how.update(shard.how)
        self.notes.update(shard.notes)
        self.rejected |= shard.rejected
        self.bytes_before += shard.bytes_before
        self.bytes_after += shard.bytes_after


def _log(split: str, report: dict[str, Any]) -> None:
    how, rejected = report["how"], report["rejected"]
    done = [f"{count} {name}" for name, count in sorted(how.items())]
    files = ", ".join([*done, f"{len(rejected)} rejected"])
    sizes = f"{report['bytes_before'] / 1e6:.1f} MB became {report['bytes_after'] / 1e6:.1f} MB"
    log.info("%s: %d files: %s; %s", split, sum(how.values()) + len(rejected), files, sizes)
    for note, count in report["notes"].most_common(5):
        log.info("%s", printable(f"  {count} {note}"))
    for path, reason in islice(rejected.items(), 5):
        log.info("%s", printable(f"  rejected: {path}: {reason}"))


def _require_images(split: str, report: dict[str, Any]) -> None:
    """Raise DataError for a split without images; warn of classes without."""
    empty = [name for name, count in report["classes"].items() if not count]
    if report["how"] and not empty:
        return
    message = f"{split}: no image can be used"
    if empty:
        message = f"{split}: {len(empty)} of {len(report['classes'])} classes have no usable image "
        message += f"({', '.join(empty[:5])})"
    for path, reason in islice(report["rejected"].items(), 1):
        message += f"; the first rejected file is {path}: {reason}"
    if not report["how"]:
        raise DataError(message)
    log.warning("%s", printable(message))


# Shards


class Result(NamedTuple):
    """A source file, and what is stored for it or why it is rejected."""

    file: File
    encoded: Encoded | str
    source_bytes: int = 0


class Row(NamedTuple):
    """An image in the index."""

    key: bytes
    side_index: bytes
    label: Any
    offset: int
    length: int
    height: int
    width: int
    orientation: int
    crc32: int


class FinishedSplit(NamedTuple):
    described: Split
    report: dict[str, Any]
    """`Counts`, and in `classes` the images of each class or label."""


@dataclass(frozen=True)
class Work:
    """The hidden folder of a part: `data`, which moves to the output, and a record of each shard.

    A record is an index file of the shard alone, with its counts. It is written once the shard is
    on disk, so a shard that has one is finished, also if a killed run has moved it to the output.
    """

    plan: PackingPlan
    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    def record(self, split: str, number: int) -> Path:
        return self.root / "records" / f"{split}-{number:06d}.safetensors"

    def prepare(self) -> None:
        """Create the folders; remove the work of a run with other files or options."""
        file, content = self.root / "plan", repr(self.plan.description)
        if not file.is_file() or file.read_text("utf-8") != content:
            if self.root.exists():
                log.info("removing %s: its run had other files or options", self.root)
                shutil.rmtree(self.root)
            write_text(file, content)
        for folder in (self.root / "records", *(self.data / split for split in self.plan.listings)):
            folder.mkdir(parents=True, exist_ok=True)

    def pack_shards(self) -> None:
        """Pack the shards that have no record."""
        custom_op.load()
        listings = self.plan.listings
        shards = [(split, number) for split in listings for number in self.plan.shards(split)]
        sizes = {(split, number): len(listings[split].shards[number]) for split, number in shards}
        left = [shard for shard in shards if not self.record(*shard).is_file()]
        total = sum(sizes.values())
        with ThreadPoolExecutor(usable_cores()) as pool:
            packed = (None for shard in left for _ in self._pack_shard(*shard, pool))
            done = total - sum(sizes[shard] for shard in left)
            for _ in track(packed, total, "packing", done=done):
                pass

    def _pack_shard(self, split: str, number: int, pool: Executor) -> Iterator[None]:
        """Write a shard, yielding for each file, and finally its record."""
        path = self.data / split / self.plan.shard_name(number)
        files = self.plan.listings[split].files(number)
        results = map_ahead(pool, self._encode, files, usable_cores() * _AHEAD_PER_WORKER)
        counts, rows = Counts(), list[Row]()
        with whole_file(path) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for result in results:
                    if isinstance(result.encoded, str):
                        counts.rejected[result.file.path] = result.encoded
                    else:
                        counts.add(result.encoded, result.source_bytes)
                        rows.append(self._add(tar, file, result, result.encoded))
                    yield
        size = path.stat().st_size
        shard = Shard(path.name, size, len(rows), crc32(path, 0, size))
        self._write_record(self.record(split, number), rows, shard, counts)

    def _add(self, tar: tarfile.TarFile, file: BinaryIO, result: Result, encoded: Encoded) -> Row:
        """Append an image and its label; returns its row of the index."""
        contents, (_, key, label, _) = self.plan.contents, result.file
        label = json.loads(label) if isinstance(label, str) else label
        data = encoded.data
        offset = add_member(tar, file, f"{key}.jpg", data)
        add_member(tar, file, f"{key}.json", member(contents.kind, contents.classes, label))
        place = offset, len(data), encoded.height, encoded.width, encoded.orientation
        return Row(key.encode(), encoded.index, label, *place, zlib.crc32(data))

    def _write_record(self, path: Path, rows: list[Row], shard: Shard, counts: Counts) -> None:
        contents = self.plan.contents
        columns = _columns(rows, contents.kind, len(contents.classes))
        content = json.dumps({"shard": asdict(shard), "counts": vars(counts)}).encode()
        columns[_COUNTS] = np.frombuffer(content, np.uint8)
        with whole_file(path) as file:
            writer = IndexWriter(file, self._record_columns())
            writer.add(columns, [row.key for row in rows], [row.side_index for row in rows])
            writer.finish()

    def _record_columns(self) -> dict[str, Any]:
        return columns_of(self.plan.contents.kind) | {_COUNTS: np.uint8}

    def _encode(self, file: File) -> Result:
        if file.rejected:
            return Result(file, file.rejected)
        try:
            size, encoded = encode(self.plan.contents.root / file.path, self.plan.options)
        except RejectedError as error:
            return Result(file, str(error))
        return Result(file, encoded, size)

    def finish_split(self, split: str) -> FinishedSplit:
        """Join the records to the split's index."""
        contents, part = self.plan.contents, self.plan.description.part
        counts, shards, labels = Counts(), list[Shard](), 0
        images = np.zeros(len(contents.classes), np.int64)
        table_crc32 = side_crc32 = 0
        if self.plan.shards(split):
            path = self.data / split / part.index
            with whole_file(path) as file:
                writer = IndexWriter(file, columns_of(contents.kind))
                for number in self.plan.shards(split):
                    record = self._read_record(split, number)
                    found = json.loads(record[_COUNTS].tobytes())
                    counts.add_shard(Counts(**found["counts"]))
                    columns = {name: record[name] for name in columns_of(contents.kind)}
                    columns["shard"] = np.full(len(record), len(shards))
                    shards.append(Shard(**found["shard"]))
                    if contents.kind != "numbers":
                        images += np.bincount(columns["label"], minlength=len(images))
                    if contents.kind == "labels":
                        columns[LABEL_END] = columns[LABEL_END] + labels
                        labels += len(columns["label"])
                    writer.add(columns, record.keys(), record.side_indexes())
                table_crc32 = writer.finish()
            side_crc32 = IndexFile(path, columns_of(contents.kind), mapped=False).side_crc32()
        classes = {} if contents.kind == "numbers" else contents.classes
        report = vars(counts) | {"classes": dict(zip(classes, images.tolist(), strict=False))}
        return FinishedSplit(Split(shards, table_crc32, side_crc32), report)

    def _read_record(self, split: str, number: int) -> IndexFile:
        return IndexFile(self.record(split, number), self._record_columns(), mapped=False)


def add_member(tar: tarfile.TarFile, file: BinaryIO, name: str, data: bytes) -> int:
    """Append a member without any metadata; returns the offset of its data in `file`."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
    return file.tell() + -len(data) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE


def _columns(rows: list[Row], kind: str, outputs: int) -> dict[str, Any]:
    """The columns of a shard's index; see `columns_of`."""
    labels = [row.label for row in rows]
    columns: dict[str, Any] = {"shard": np.zeros(len(rows)), "label": labels}
    for name in Row._fields[3:]:
        columns[name] = [getattr(row, name) for row in rows]
    if kind == "labels":
        columns["label"] = [number for label in labels for number in label]
        columns[LABEL_END] = np.cumsum([len(label) for label in labels])
    elif kind == "numbers":
        columns["label"] = np.array(labels, np.float32).reshape(len(rows), outputs)
    return columns
