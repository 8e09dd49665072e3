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
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

import custom_op
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.part import Part
from entry_point.data.errors import DataError
from entry_point.data.packing.encode import Encoded, RejectedError, encode
from entry_point.data.packing.output_folder import locked
from entry_point.data.packing.scan import Listing
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.dataset import open_dataset
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
from entry_point.data.sources.index_file import IndexWriter
from entry_point.data.sources.shards import LABEL_END, columns_of
from entry_point.job.program import counted, printable
from entry_point.job.whole_file import whole_file, write_text

_SETTINGS = ("max_side", "convert", "quality", "shard_mb", "gray_bits")
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
    packing = _plan(source, output, options, part or Part(), own_files)
    description = packing.description
    with locked(output / description.part.description):
        if not _is_complete(description, output):
            packing.prepare()
            packing.pack_shards()
            described = packing.describe()
            _publish(packing, output, described)
        shutil.rmtree(packing.folder, ignore_errors=True)


def _plan(
    source: Path, output: Path, options: OptimizeConfig, part: Part, own_files: bool
) -> Packing:
    """List all files of `source`."""
    data = options.dataset(str(source))
    dataset = open_dataset(data, source, for_training=True, of_part=own_files)
    if dataset.data.format == "shards":
        raise DataError(f"source={source} is packed already: train on it as it is")
    splits = {split: dataset.source(split) for split in dataset.splits}
    listings = {split: Listing(files, options.shard_mb * 1e6) for split, files in splits.items()}
    first = next(iter(splits.values()))
    classes, kind = first.classes, first.kind
    if kind == "targets":
        has = "has targets, such as masks, which are not packed"
        raise DataError(f"source={source} {has}: train on it as it is")
    files, times = hashlib.sha256(json.dumps(classes).encode()), hashlib.sha256()
    for split, listing in listings.items():
        files.update(split.encode())
        listing.add_to(files, times)
    description = Description(
        classes,
        {},
        files.hexdigest(),
        times.hexdigest(),
        {name: getattr(options, name) for name in _SETTINGS},
        kind,
        part,
        own_files,
    )
    folder = output / f".{part.name('unfinished', '')}"
    return Packing(options, listings, description, folder)


def _is_complete(description: Description, output: Path) -> bool:
    """Returns whether the part is already made. Raises DataError if `output` holds anything but
    parts."""
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


def _publish(packing: Packing, output: Path, description: Description) -> None:
    """Move all files to their place; the description, which makes them a dataset, comes last.

    If it is killed, some are moved already, and the next run moves the others.
    """
    for file in [each for each in packing.data.rglob("*") if each.is_file()]:
        target = output / file.relative_to(packing.data)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    write_description(packing.folder, description)
    os.sync()
    name = description.part.description
    (packing.folder / name).replace(output / name)
    os.sync()


class Row(NamedTuple):
    """An image in the index."""

    key: bytes
    """The name of its member in the shard."""
    side_index: bytes
    label: Any
    offset: int
    length: int
    height: int
    width: int
    orientation: int
    crc32: int


@dataclass
class Counts:
    """What became of the source files of a shard, or of a split."""

    how: Counter[str] = field(default_factory=Counter)
    """Images by `Encoded.how`."""
    notes: Counter[str] = field(default_factory=Counter)
    """Why images have no side index, and what converted ones lost."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Path and reason of every file that was not packed."""
    bytes_before: int = 0
    bytes_after: int = 0

    def add(self, image: Encoded, source_bytes: int) -> None:
        self.how[image.how] += 1
        if image.note:
            self.notes[f"{image.how}: {image.note}"] += 1
        self.bytes_before += source_bytes
        self.bytes_after += len(image.data)

    def add_shard(self, shard: Counts) -> None:
        self.how.update(shard.how)
        self.notes.update(shard.notes)
        self.rejected |= shard.rejected
        self.bytes_before += shard.bytes_before
        self.bytes_after += shard.bytes_after


@dataclass
class Record:
    """A finished shard."""

    shard: Shard
    counts: Counts
    rows: list[Row]

    @classmethod
    def read(cls, file: Path) -> Record:
        def made(kind: type, value: Any) -> Any:
            """Returns a Counter, which msgspec takes for a dict."""
            return kind(value)

        return msgspec.msgpack.decode(file.read_bytes(), type=cls, dec_hook=made)


Packed = tuple[int, Encoded | str, int]
"""An image's number, what is stored for it or why it is rejected, and its source's bytes."""


@dataclass(frozen=True)
class Packing:
    """All that determines the output's bytes, and the hidden folder of a part.

    The folder holds `data`, which moves to the output, and a record of each shard. A record is
    written once the shard is on disk, so a shard that has one is finished, also if a killed run has
    moved it to the output.
    """

    options: OptimizeConfig
    listings: dict[str, Listing]
    """By split."""
    description: Description
    """Of the part, without its splits."""
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def shards(self, split: str) -> list[int]:
        """Numbers of the part's shards."""
        part, every = self.description.part, range(len(self.listings[split].shards))
        return list(every if self.description.own_files else every[part.number - 1 :: part.count])

    def prepare(self) -> None:
        """Create the folders; remove the work of a run with other files or options."""
        file, content = self.folder / "plan", repr(self.description)
        if not file.is_file() or file.read_text("utf-8") != content:
            if self.folder.exists():
                log.info("removing %s: its run had other files or options", self.folder)
                shutil.rmtree(self.folder)
            write_text(file, content)
        for folder in (self.folder / "records", *(self.data / split for split in self.listings)):
            folder.mkdir(parents=True, exist_ok=True)

    def pack_shards(self) -> None:
        """Pack the shards that have no record."""
        custom_op.load()
        shards = [(split, number) for split in self.listings for number in self.shards(split)]
        sizes = [len(self.listings[split].shards[number]) for split, number in shards]
        left = [shard for shard in shards if not self._record(*shard).is_file()]
        listings = ((self.listings[split], number) for split, number in left)
        files = [(listing, i) for listing, number in listings for i in listing.shards[number]]
        total = sum(sizes)
        packed = in_threads(self._encode, files, total, "packing", total - len(files))
        for split, number in left:
            self._pack_shard(split, number, packed)
        for _ in packed:  # shows the end of the progress
            pass

    def _encode(self, file: tuple[Listing, int]) -> Packed:
        listing, i = file
        try:
            size, encoded = encode(listing.source, i, self.options)
        except RejectedError as error:
            return i, str(error), 0
        return i, encoded, size

    def _pack_shard(self, split: str, number: int, packed: Iterator[Packed]) -> None:
        """Write a shard of the next files, and its record."""
        prefix = f"{self.description.part.padded}-" if self.description.own_files else ""
        path = self.data / split / f"shard-{prefix}{number:06d}.tar"
        listing = self.listings[split]
        counts, rows = Counts(), list[Row]()
        with whole_file(path) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for i, encoded, size in islice(packed, len(listing.shards[number])):
                    if isinstance(encoded, str):
                        counts.rejected[listing.name(i)] = encoded
                    else:
                        counts.add(encoded, size)
                        rows.append(self._add(tar, file, listing.key(i), listing.label(i), encoded))
        size = path.stat().st_size
        shard = Shard(path.name, size, len(rows), crc32(path, 0, size))
        with whole_file(self._record(split, number)) as file:
            file.write(msgspec.msgpack.encode(Record(shard, counts, rows)))

    def _add(
        self, tar: tarfile.TarFile, file: BinaryIO, key: str, label: Any, encoded: Encoded
    ) -> Row:
        """Append an image and its label; returns its row of the index."""
        data = encoded.data
        name = f"{key}.{encoded.suffix}"
        offset = add_member(tar, file, name, data)
        text = member(self.description.kind, self.description.classes, label)
        add_member(tar, file, f"{key}.json", text)
        place = offset, len(data), encoded.height, encoded.width, encoded.orientation
        return Row(name.encode(), encoded.index, label, *place, zlib.crc32(data))

    def _record(self, split: str, number: int) -> Path:
        return self.folder / "records" / f"{split}-{number:06d}.msgpack"

    def describe(self) -> Description:
        """Write the index of each split and the report; returns the finished description."""
        part = self.description.part
        made = {split: self._finish(split) for split in self.listings}
        report = self.data / part.name("report", ".json")
        content = {"splits": {split: found for split, (_, found) in made.items()}}
        with whole_file(report) as file:
            file.write(json.dumps(content, indent=1, ensure_ascii=False).encode())
        for split, (_, found) in made.items():
            _log(split, found)
            if part.count == 1:
                _require_images(split, found)
        log.info("%s lists the rejected files", report.name)
        return replace(self.description, splits={name: split for name, (split, _) in made.items()})

    def _finish(self, split: str) -> tuple[Split, dict[str, Any]]:
        """Join the records to the split's index; returns its description and its report.

        The report has `Counts`, and in `classes` the images of each class or label.
        """
        kind, classes = self.description.kind, self.description.classes
        counts, shards, labels = Counts(), list[Shard](), 0
        images = np.zeros(len(classes), np.int64)
        table_crc32 = side_crc32 = 0
        if self.shards(split):
            with whole_file(self.data / split / self.description.part.index) as file:
                writer = IndexWriter(file, columns_of(kind))
                for number in self.shards(split):
                    record = Record.read(self._record(split, number))
                    counts.add_shard(record.counts)
                    columns = _columns(record.rows, kind, len(classes), labels)
                    columns["shard"] = np.full(len(record.rows), len(shards))
                    shards.append(record.shard)
                    labels += len(columns["label"])
                    if kind != "numbers":
                        images += np.bincount(columns["label"], minlength=len(images))
                    keys = [row.key for row in record.rows]
                    writer.add(columns, keys, [row.side_index for row in record.rows])
                table_crc32, side_crc32 = writer.finish(), writer.side_crc32
        named = {} if kind == "numbers" else classes
        report = vars(counts) | {"classes": dict(zip(named, images.tolist(), strict=False))}
        return Split(shards, table_crc32, side_crc32), report


def _columns(rows: list[Row], kind: str, outputs: int, labels_before: int) -> dict[str, Any]:
    """Returns the columns of a shard's index but `shard`; see `columns_of`."""
    labels = [row.label for row in rows]
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in Row._fields}
    if kind == "labels":
        columns["label"] = np.array([number for label in labels for number in label], np.int64)
        columns[LABEL_END] = labels_before + np.cumsum([len(label) for label in labels])
    elif kind == "numbers":
        columns["label"] = np.array(labels, np.float32).reshape(len(rows), outputs)
    return columns


def add_member(tar: tarfile.TarFile, file: BinaryIO, name: str, data: bytes) -> int:
    """Append a member without any metadata; returns the offset of its data in `file`."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
    return file.tell() + -len(data) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE


def _log(split: str, report: dict[str, Any]) -> None:
    how, rejected = report["how"], report["rejected"]
    done = [f"{count} {name}" for name, count in sorted(how.items())]
    files = ", ".join([*done, f"{len(rejected)} rejected"])
    sizes = f"{report['bytes_before'] / 1e6:.1f} MB became {report['bytes_after'] / 1e6:.1f} MB"
    count = counted(sum(how.values()) + len(rejected), "file")
    log.info("%s: %s: %s; %s", split, count, files, sizes)
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
