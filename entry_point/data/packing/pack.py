"""Packs the images of a source into shards, or plain files; a killed run resumes at its next shard.

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
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

import custom_op
from entry_point.config.data_config import usable_cores
from entry_point.config.packing_config import OptimizeConfig, Part
from entry_point.contract.printable import printable
from entry_point.contract.whole_file import naming, whole_file, write_text
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.errors import DataError
from entry_point.data.packing.encode import Encoded, RejectedError, encode
from entry_point.data.packing.output_folder import locked
from entry_point.data.packing.report import Report, SplitReport, find_duplicates
from entry_point.data.packing.scan import Contents, File, Listing, contents_of
from entry_point.data.progress_bar import track
from entry_point.data.sources.class_folders import FOLDER_INDEX
from entry_point.data.sources.dataset_description import (
    Description,
    Shard,
    Split,
    read_parts,
    require_alike,
    write_description,
)
from entry_point.data.sources.folder_index import IndexedFile, write_folder_index
from entry_point.data.sources.index_file import IndexFile, IndexWriter
from entry_point.data.sources.label_kind import member, names_of
from entry_point.data.sources.packed.index import LABEL_END, columns_of

_AHEAD_PER_WORKER = 4
_SETTINGS = ("max_side", "quality", "shard_mb", "seed")
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
            _pack(plan, output, WorkFolder(output / f".{part.name('unfinished', '')}"))
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
        split: Listing(contents.entries(split), options.seed, options.shard_mb * 1e6)
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
        options.output_format,
        contents.kind,
        part,
        own_files,
    )
    return PackingPlan(contents, options, listings, description)


def _pack(plan: PackingPlan, output: Path, work: WorkFolder) -> None:
    if _is_complete(plan.description, output):
        shutil.rmtree(work.root, ignore_errors=True)  # left by a run killed at its very end
        return
    contents = plan.contents
    report = Report(left_out=contents.left_out)
    if names := ", ".join(report.left_out[:5]):
        log.warning(
            "%s: only train and val are packed, ignored: %s", contents.root, printable(names)
        )
    work.prepare(plan.description, plan.listings)
    _pack_shards(plan, output, work)
    splits = {split: _finish_split(plan, work, split, report) for split in plan.listings}
    if plan.options.output_format == "folder":
        with whole_file(work.data / FOLDER_INDEX) as file:
            write_folder_index(file, _plain_files(plan, work))
    indexes = [
        (split, _open_index(work.data / split / plan.description.part.index, contents.kind))
        for split, made in splits.items()
        if made.shards
    ]
    report.duplicates = find_duplicates(indexes)
    report.finish(work.data, plan.description.part, plan.options.output_format)
    write_description(work.data, replace(plan.description, splits=splits))
    _publish(work.data, output, plan.description.part)
    shutil.rmtree(work.root)


def _is_complete(description: Description, output: Path) -> bool:
    """Whether the part is already made. Raises DataError if `output` holds anything but parts."""
    parts = read_parts(output)
    remedy = "remove it or choose another folder"
    for made in parts:
        if made.part != description.part:
            continue
        if made != replace(description, splits=made.splits):
            raise DataError(
                f"output={output} holds a dataset made from other files or with other options: "
                f"{remedy}"
            )
        log.info("%s is already complete", output / made.part.description)
        return True
    if parts:
        require_alike(output, [*parts, description])
    elif any(output.glob("[!.]*")) and not any(output.glob(".unfinished*")):
        raise DataError(f"output={output} holds other files: choose another folder")
    return False


def _publish(data: Path, output: Path, part: Part) -> None:
    """Move all files to their place; the description, which makes them a dataset, comes last."""
    os.sync()
    entries = sorted(data.iterdir(), key=lambda entry: entry.name.startswith("dataset"))
    for entry in entries:
        target = output / entry.name
        if entry.is_dir() and part.count > 1:
            target.mkdir(exist_ok=True)
        if entry.is_dir() and target.is_dir():  # another part, or a killed run, was here before
            for file in entry.iterdir():
                file.replace(target / file.name)
        else:
            entry.replace(target)
        os.sync()


# Shards


@dataclass(frozen=True)
class WorkFolder:
    """Finished shards and their records, kept for resuming."""

    root: Path

    @property
    def data(self) -> Path:
        """The folder whose content moves to the output."""
        return self.root / "data"

    def record(self, split: str, number: int) -> Record:
        return Record(self.root / "records" / f"{split}-{number:06d}")

    def prepare(self, description: Description, splits: Iterable[str]) -> None:
        """Create the folders; remove the work of a run with other files or options."""
        plan, content = self.root / "plan", repr(description)
        if not plan.is_file() or plan.read_text("utf-8") != content:
            if self.root.exists():
                log.info("removing %s: its run had other files or options", self.root)
                shutil.rmtree(self.root)
            self.root.mkdir()
            write_text(plan, content)
        for split in splits:
            (self.data / split).mkdir(parents=True, exist_ok=True)
        (self.root / "records").mkdir(exist_ok=True)


@dataclass(frozen=True)
class Record:
    """What became of one shard's source files: two files, the second written when all is done."""

    stem: Path

    @property
    def index(self) -> Path:
        """An index file of the shard alone."""
        return self.stem.with_suffix(".safetensors")

    def write(self, made: dict[str, int], report: SplitReport) -> None:
        """`made`: the files, relative to the split's folder, and their sizes in bytes."""
        write_text(self.stem.with_suffix(".json"), json.dumps([made, vars(report)]))

    def read(self) -> tuple[dict[str, int], dict[str, Any]]:
        made, report = json.loads(self.stem.with_suffix(".json").read_text("utf-8"))
        return made, report

    def is_intact(self, *folders: Path) -> bool:
        """Whether one of the folders has every file that was written, with its size."""
        try:
            made, _ = self.read()
        except (FileNotFoundError, ValueError):  # not written yet, or truncated
            return False
        return self.index.is_file() and any(
            all(_has_size(folder / name, size) for name, size in made.items()) for folder in folders
        )


def _has_size(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _pack_shards(plan: PackingPlan, output: Path, work: WorkFolder) -> None:
    custom_op.load()
    workers = plan.options.workers or usable_cores()
    shards = [(split, number) for split in plan.listings for number in plan.shards(split)]
    left = [
        (split, number)
        for split, number in shards
        # A killed run may have moved files to the output.
        if not work.record(split, number).is_intact(work.data / split, output / split)
    ]

    def sizes(chosen: list[tuple[str, int]]) -> int:
        return sum(len(plan.listings[split].shards[number]) for split, number in chosen)

    def files_done() -> Iterator[int]:
        with ThreadPoolExecutor(workers) as pool:
            for split, number in left:
                packer = ShardPacker(plan, work.data / split, pool, workers)
                yield from packer.pack(split, number, work.record(split, number))

    total = sizes(shards)
    for _ in track(files_done(), total, "packing", done=total - sizes(left)):
        pass


class Sample(NamedTuple):
    """A source file as it is packed."""

    file: File
    label: Any
    encoded: Encoded
    source_bytes: int
    digest: int


class Rejected(NamedTuple):
    """A source file that is not packed."""

    file: File
    reason: str


class Row(NamedTuple):
    """A sample in the index."""

    key: bytes
    side_index: bytes
    label: Any
    offset: int
    length: int
    height: int
    width: int
    orientation: int
    crc32: int
    digest: int

    @classmethod
    def of(cls, sample: Sample, offset: int) -> Row:
        encoded = sample.encoded
        data = encoded.data
        place = offset, len(data), encoded.height, encoded.width, encoded.orientation
        checksums = zlib.crc32(data), sample.digest
        return cls(sample.file.key.encode(), encoded.index, sample.label, *place, *checksums)


@dataclass(frozen=True)
class ShardPacker:
    """Packs files into shards, or into plain files, in the folder of a split."""

    plan: PackingPlan
    folder: Path
    pool: Executor
    workers: int

    def pack(self, split: str, number: int, record: Record) -> Iterator[int]:
        """Write one shard, yielding 1 per finished file, and finally its `record`."""
        contents = self.plan.contents
        report, made = SplitReport(), dict[str, int]()
        rows: list[Row] = []
        files = self.plan.listings[split].files(number)
        found = map_ahead(self.pool, self._encode, files, self.workers * _AHEAD_PER_WORKER)
        is_shard = self.plan.options.output_format == "shards"
        write = self._to_shard if is_shard else self._to_files
        for outcome, offset in write(self.plan.shard_name(number), found, made):
            if isinstance(outcome, Rejected):
                report.reject(outcome.file.path, outcome.reason)
            else:
                rows.append(Row.of(outcome, offset))
                names = names_of(contents.kind, contents.classes, outcome.label)
                report.add(outcome.encoded, outcome.source_bytes, names)
            yield 1
        with whole_file(record.index) as file:
            writer = IndexWriter(file, columns_of(contents.kind))
            columns = _columns(rows, contents.kind, len(contents.classes))
            writer.add(columns, [row.key for row in rows], [row.side_index for row in rows])
            writer.finish()
        record.write(made, report)

    def _to_shard(
        self, name: str, found: Iterator[Sample | Rejected], made: dict[str, int]
    ) -> Iterator[tuple[Sample | Rejected, int]]:
        """Each outcome, and the offset of its JPEG in the shard."""
        contents = self.plan.contents
        with whole_file(self.folder / name) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for outcome in found:
                    offset = 0
                    if isinstance(outcome, Sample):
                        key = outcome.file.key
                        offset = add_member(tar, file, f"{key}.jpg", outcome.encoded.data)
                        label = member(contents.kind, contents.classes, outcome.label)
                        add_member(tar, file, f"{key}.json", label)
                    yield outcome, offset
            made[name] = file.tell()

    def _to_files(
        self, _name: str, found: Iterator[Sample | Rejected], made: dict[str, int]
    ) -> Iterator[tuple[Sample | Rejected, int]]:
        for outcome in found:
            if isinstance(outcome, Sample):
                name = f"{outcome.file.key}.jpg"
                file = self.folder / name
                with naming(file):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(outcome.encoded.data)
                made[name] = len(outcome.encoded.data)
            yield outcome, 0
        os.sync()  # the files must be on disk before their record

    def _encode(self, file: File) -> Sample | Rejected:
        if file.rejected:
            return Rejected(file, file.rejected)
        try:
            original, encoded = encode(self.plan.contents.root / file.path, self.plan.options)
        except RejectedError as error:
            return Rejected(file, str(error))
        digest = hashlib.blake2b(original, digest_size=8).digest()
        label = json.loads(file.label) if isinstance(file.label, str) else file.label
        return Sample(file, label, encoded, len(original), int.from_bytes(digest, "little"))


def add_member(tar: tarfile.TarFile, file: BinaryIO, name: str, data: bytes) -> int:
    """Append a member without any metadata; returns the offset of its data in `file`."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
    return file.tell() + -len(data) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE


# The index


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


def _finish_split(plan: PackingPlan, work: WorkFolder, split: str, report: Report) -> Split:
    """Write the index of the part's shards; adds their counts to `report`."""
    kind, part = plan.contents.kind, plan.description.part
    counted = [] if kind == "numbers" else plan.contents.classes
    report.splits[split] = SplitReport(classes=Counter(dict.fromkeys(counted, 0)))
    shards: list[Shard] = []
    if not plan.shards(split):
        return Split(shards, 0, 0)
    path = work.data / split / part.index
    with whole_file(path) as file:
        writer, labels = IndexWriter(file, columns_of(kind)), 0
        for number in plan.shards(split):
            made, counts = work.record(split, number).read()
            report.splits[split].add_shard(counts)
            index = IndexFile(work.record(split, number).index, columns_of(kind), mapped=False)
            columns = {name: index[name] for name in columns_of(kind)}
            columns["shard"] = np.full(len(index), len(shards))
            if kind == "labels":
                columns[LABEL_END] = columns[LABEL_END] + labels
                labels += len(columns["label"])
            writer.add(columns, index.keys(), index.side_indexes())
            name = plan.shard_name(number)
            shards.append(Shard(name, made.get(name, 0), len(index)))
        table_crc32 = writer.finish()
    return Split(shards, table_crc32, _open_index(path, kind).side_crc32())


def _open_index(path: Path, kind: str) -> IndexFile:
    return IndexFile(path, columns_of(kind), mapped=True)


def _plain_files(plan: PackingPlan, work: WorkFolder) -> Iterator[list[IndexedFile]]:
    """The files of each shard that was written as plain files."""
    for split in plan.listings:
        for number in plan.shards(split):
            path = work.record(split, number).index
            index = IndexFile(path, columns_of(plan.contents.kind), mapped=False)
            names = (f"{split}/{key.decode()}.jpg" for key in index.keys())
            lengths = index["length"].tolist()
            found = zip(names, lengths, index.side_indexes(), strict=True)
            yield [IndexedFile(*each) for each in found]
