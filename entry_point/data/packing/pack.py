"""Packs the images of a source into shards; a killed run resumes at its next shard.

A run packs one part of the dataset. The shards are dealt to the parts in turn, so together the
parts make the same files as a single run; each part describes only its own shards.

A run writes below the hidden folder `.unfinished` of its output: each complete shard and, beside
it, a file of its rows for the index and the report. All files move to their final names when the
last shard is complete: before that, `train/*.tar` would be read as another dataset.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

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
    is_packed,
    member,
    read_dataset,
    read_parts,
    require_alike,
    require_shard,
    write_description,
)
from entry_point.data.sources.file_bytes import crc32
from entry_point.data.sources.shard_table import write_table
from entry_point.data.sources.shards import (
    COLUMNS,
    LABEL_END,
    SIDE_MEMBER,
    PartIndex,
    columns_of,
)
from entry_point.data.sources.source import Source
from entry_point.data.sources.stream import PackedStream
from entry_point.job.text import counted, printable
from entry_point.job.whole_file import whole_file, write_text

_SETTINGS = ("max_side", "convert", "quality", "shard_mb", "gray_bits")
"""Options that affect the bytes of a shard."""

log = logging.getLogger(__name__)


def pack(
    source: Path,
    output: Path,
    options: OptimizeConfig,
    part: Part | None = None,
    own_files: bool = False,
) -> None:
    """Pack a part of the images of `source` into `output`; by default, all images in one part.

    With `own_files`, `source` holds only the part's share, which is packed as a whole. A run with
    the same source and options reuses the finished shards of an interrupted one. If there is only
    one part, each split must have images. Raises DataError and OSError.
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
            packing.publish(packing.describe())
        shutil.rmtree(packing.folder, ignore_errors=True)


def _plan(
    source: Path, output: Path, options: OptimizeConfig, part: Part, own_files: bool
) -> Packing:
    """List all files of `source`, and describe the part to pack."""
    splits = _open(source, options, own_files)
    listings = {split: Listing(files, options.shard_mb * 1e6) for split, files in splits.items()}
    first = next(iter(splits.values()))
    if first.kind == "targets":
        has = "has targets, such as masks, which are not packed"
        raise DataError(f"source={source} {has}: train on it as it is")
    files, times = hashlib.sha256(json.dumps(first.classes).encode()), hashlib.sha256()
    for split, listing in listings.items():
        files.update(split.encode())
        listing.add_to(files, times)
    settings = {name: getattr(options, name) for name in _SETTINGS}
    hashes = files.hexdigest(), times.hexdigest()
    description = Description(first.classes, {}, *hashes, settings, first.kind, part, own_files)
    return Packing(options, listings, description, output)


def _open(source: Path, options: OptimizeConfig, own_files: bool) -> Mapping[str, Source]:
    """Returns the images of each split. Accepts a packed dataset of version 1, to convert it.

    Raises DataError for a packed dataset of the current version.
    """
    data = options.dataset(str(source))
    if data.format in ("auto", "shards") and is_packed(source):
        packed = read_dataset(source)
        if packed.version == 1:
            log.info("%s is converted from version 1", source)
            return {split: PackedStream(source, split) for split in packed.splits}
    dataset = open_dataset(data, source, for_training=True, of_part=own_files)
    if dataset.data.format == "shards":
        raise DataError(f"source={source} is packed already: train on it as it is")
    if not own_files and "train" in dataset.splits and "val" not in dataset.splits:
        line = "%s has no images for val, which training needs: %s"
        log.warning(line, printable(str(source)), dataset.val_from)
    return {split: dataset.source(split) for split in dataset.splits}


def _is_complete(description: Description, output: Path) -> bool:
    """Returns whether the part is complete already. Raises DataError if `output` holds anything
    but parts of the same dataset."""
    parts = read_parts(output)
    for made in parts:
        if made.part != description.part:
            continue
        if made != replace(description, splits=made.splits):
            raise DataError(
                f"output={output} holds a dataset made from other files or with other options: "
                "remove it or choose another folder"
            )
        try:
            _require_files(made, output)
        except DataError as error:
            log.warning("packing it again, as %s", error)
            return False
        name = output / made.part.description
        log.info("%s is already complete; a damaged file that you remove is packed again", name)
        return True
    if parts:
        require_alike(output, [*parts, description])
    elif any(output.glob("[!.]*")) and not any(output.glob(".unfinished*")):
        raise DataError(f"output={output} holds other files: choose another folder")
    return False


def _require_files(made: Description, output: Path) -> None:
    """Raise DataError if a file of the part is missing in `output`; users remove damaged files to
    have them packed again."""
    for split, found in made.splits.items():
        for shard in found.shards:
            require_shard(output / split, shard)
        if found.shards:
            PartIndex(output, made, split)


class Row(msgspec.Struct, array_like=True):
    """A packed image: its row of the index, and the values that the report counts."""

    key: bytes
    """Name of the image's member in the shard."""
    label: Any
    offset: int
    length: int
    height: int
    width: int
    orientation: int
    crc32: int
    how: str
    note: str
    """Reason why the image has no side index, or a list of its losses."""
    source_bytes: int
    side_offset: int = 0
    side_length: int = 0

    @classmethod
    def of(cls, key: str, label: Any, offset: int, image: Encoded, source_bytes: int) -> Row:
        place = offset, len(image.data), image.height, image.width, image.orientation
        checksum, counted_as = zlib.crc32(image.data), (image.how, image.note, source_bytes)
        return cls(key.encode(), label, *place, checksum, *counted_as)


class ShardRows(msgspec.Struct):
    """A finished shard, its images, and the files that were rejected."""

    shard: Shard
    rows: list[Row]
    rejected: dict[str, str]
    """Reasons of the files that were not packed, by path."""


@dataclass(frozen=True)
class Packing:
    """Packs one part of a dataset into its output."""

    options: OptimizeConfig
    listings: dict[str, Listing]
    """The images, by split."""
    description: Description
    """Description of the part, without its splits."""
    output: Path

    @property
    def folder(self) -> Path:
        """The hidden folder; its files have the same names as later in the output."""
        return self.output / f".{self.description.part.name('unfinished', '')}"

    def shards(self, split: str) -> dict[Path, list[int]]:
        """Returns the part's shards, with the numbers of their images in the source."""
        part, every = self.description.part, [*enumerate(self.listings[split].shards)]
        start = self.folder / split / "shard-"
        if self.description.own_files:
            return {Path(f"{start}{part.padded}-{n:06d}.tar"): images for n, images in every}
        own = every[part.number - 1 :: part.count]
        return {Path(f"{start}{n:06d}.tar"): images for n, images in own}

    def prepare(self) -> None:
        """Remove the work of a run with other files or options."""
        file, content = self.folder / "plan", repr(self.description)
        if not file.is_file() or file.read_text("utf-8") != content:
            if self.folder.exists():
                log.info("removing %s: its run had other files or options", self.folder)
                shutil.rmtree(self.folder)
            write_text(file, content)

    def pack_shards(self) -> None:
        """Pack the shards that are not complete yet."""
        custom_op.load()
        shards = [
            (listing, file, numbers)
            for split, listing in self.listings.items()
            for file, numbers in self.shards(split).items()
        ]
        left = [shard for shard in shards if not _rows_of(shard[1]).is_file()]
        total = sum(len(numbers) for _, _, numbers in shards)
        images = [(listing, i) for listing, _, numbers in left for i in numbers]
        packed = in_threads(self._encode, images, total, "packing", total - len(images))
        for listing, file, numbers in left:
            self._pack_shard(listing, file, numbers, packed)
        for _ in packed:  # exhausts the iterator, which then shows the final progress
            pass

    def _encode(self, image: tuple[Listing, int]) -> tuple[int, Encoded | str]:
        """Returns the size of the source file and the encoding; or 0 and why it was rejected."""
        listing, i = image
        try:
            return encode(listing.source, i, self.options)
        except RejectedError as error:
            return 0, str(error)

    def _pack_shard(
        self,
        listing: Listing,
        path: Path,
        numbers: list[int],
        packed: Iterator[tuple[int, Encoded | str]],
    ) -> None:
        """Write a shard of the next images, then the file of its rows. This file marks the shard as
        complete, even after a killed run has moved the shard to the output."""
        rows, indexes, rejected = list[Row](), list[bytes](), dict[str, str]()
        with (
            whole_file(path) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for i, (source_bytes, encoded) in zip(numbers, packed, strict=False):
                if isinstance(encoded, str):
                    rejected[listing.name(i)] = encoded
                    continue
                key, label = listing.key(i), listing.label(i)
                name = f"{key}.{encoded.suffix}"
                offset = add_member(tar, file, name, encoded.data)
                text = member(self.description.kind, self.description.classes, label)
                add_member(tar, file, f"{key}.json", text)
                rows.append(Row.of(name, label, offset, encoded, source_bytes))
                indexes.append(encoded.index)
            start = add_member(tar, file, SIDE_MEMBER, b"".join(indexes))
            for row, index in zip(rows, indexes, strict=True):
                row.side_offset, row.side_length = start, len(index)
                start += len(index)
        size = path.stat().st_size
        shard = Shard(path.name, size, len(rows), crc32(path, 0, size))
        with whole_file(_rows_of(path)) as file:
            file.write(msgspec.msgpack.encode(ShardRows(shard, rows, rejected)))

    def describe(self) -> Description:
        """Write the index of each split and the report; returns the finished description."""
        made = {split: self._describe(split) for split in self.listings}
        name = self.description.part.name("report", ".json")
        content = {"splits": {split: report for split, (_, report) in made.items()}}
        with whole_file(self.folder / name) as file:
            file.write(json.dumps(content, indent=1, ensure_ascii=False).encode())
        for split, (_, report) in made.items():
            _log(split, report)
            if self.description.part.count == 1:
                _require_images(split, report)
        log.info("%s lists the rejected files", name)
        return replace(
            self.description, splits={split: found for split, (found, _) in made.items()}
        )

    def _describe(self, split: str) -> tuple[Split, dict[str, Any]]:
        """Write the split's index from its shards' rows; return its description and report."""
        kind, classes = self.description.kind, self.description.classes
        report: dict[str, Any] = {"how": Counter(), "notes": Counter(), "rejected": {}}
        report |= {"bytes_before": 0, "bytes_after": 0}
        report["classes"] = dict.fromkeys(() if kind == "numbers" else classes, 0)
        found, keys, parts = Split([], 0), list[bytes](), list[dict[str, Any]]()
        if files := self.shards(split):
            for number, path in enumerate(files):
                made = msgspec.msgpack.decode(_rows_of(path).read_bytes(), type=ShardRows)
                found.shards.append(made.shard)
                keys += [row.key for row in made.rows]
                parts.append(_columns(made.rows, kind, len(classes), number))
                _count(made, kind, classes, report)
            columns = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
            if kind == "labels":
                columns[LABEL_END] = np.cumsum(columns[LABEL_END])
            file = self.folder / split / self.description.part.index
            found = Split(found.shards, write_table(file, columns, keys))
        return found, report

    def publish(self, description: Description) -> None:
        """Move all files to the output. The description is last, because it makes them a dataset.

        If a run is killed while it moves them, the next run moves the rest.
        """
        part = description.part
        names = [part.name("report", ".json")]
        for split, made in description.splits.items():
            names += [f"{split}/{shard.file}" for shard in made.shards]
            names += [f"{split}/{part.index}"] if made.shards else []
        for name in names:
            (self.output / name).parent.mkdir(parents=True, exist_ok=True)
            if (self.folder / name).is_file():
                (self.folder / name).replace(self.output / name)
        write_description(self.folder, description)
        os.sync()
        (self.folder / part.description).replace(self.output / part.description)
        os.sync()


def _rows_of(shard: Path) -> Path:
    return shard.with_suffix(".rows")


def _columns(rows: list[Row], kind: str, outputs: int, shard: int) -> dict[str, Any]:
    """Returns the columns of a shard's images, see `columns_of`. LABEL_END holds the number of
    labels of each image."""
    labels: Any = [row.label for row in rows]
    types = columns_of(kind)
    names = COLUMNS.keys() - {"shard", "label"}
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in names}
    columns["shard"] = [shard] * len(rows)
    if kind == "labels":
        columns[LABEL_END] = [*map(len, labels)]
        labels = [number for label in labels for number in label]
    elif kind == "numbers":
        labels = np.array(labels, np.float32).reshape(len(rows), outputs)
    columns["label"] = labels
    return {name: np.asarray(column, types[name]) for name, column in columns.items()}


def _count(made: ShardRows, kind: str, classes: list[str], report: dict[str, Any]) -> None:
    """Add a shard to its split's report, in which `how`, `notes` and `classes` count images."""
    report["rejected"] |= made.rejected
    for row in made.rows:
        report["how"][row.how] += 1
        if row.note:
            report["notes"][f"{row.how}: {row.note}"] += 1
        report["bytes_before"] += row.source_bytes
        report["bytes_after"] += row.length
        if kind != "numbers":
            for number in [row.label] if kind == "class" else row.label:
                report["classes"][classes[number]] += 1


def add_member(tar: tarfile.TarFile, file: BinaryIO, name: str, data: bytes) -> int:
    """Append a member without metadata; returns the offset of its data in `file`."""
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
    lines = [f"  {count} {note}" for note, count in report["notes"].most_common(5)]
    lines += [f"  rejected: {path}: {reason}" for path, reason in islice(rejected.items(), 5)]
    for line in lines:
        log.info("%s", printable(line))


def _require_images(split: str, report: dict[str, Any]) -> None:
    """Raise DataError for a split without images; warn of classes without images."""
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
