"""Packs one shard; an interrupted shard is packed again from its beginning."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zlib
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from entry_point.config.packing_config import OptimizeConfig
from entry_point.contract.whole_file import naming, whole_file
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.packing.contents import Contents
from entry_point.data.packing.convert import RejectedError
from entry_point.data.packing.encode import encode
from entry_point.data.packing.scan_source import Entry
from entry_point.data.packing.work_folder import ShardRecord
from entry_point.data.sources.label_kind import member

_AHEAD_PER_WORKER = 4

Row = dict[str, Any]
"""One source file: its index row and what the report counts, or why it was rejected."""


@dataclass(frozen=True)
class ShardPacker:
    """Packs entries of one source into shards, or into plain files, under one folder."""

    contents: Contents
    folder: Path
    options: OptimizeConfig
    pool: Executor
    workers: int

    def pack(self, name: str, entries: list[Entry], record: Path) -> Iterator[int]:
        """Write one shard, yielding 1 per finished file, and finally its `record`."""
        made: dict[str, int] = {}
        rows: list[Row] = []
        encoded = map_ahead(self.pool, self._encode, entries, self.workers * _AHEAD_PER_WORKER)
        write = self._to_shard if self.options.output_format == "shards" else self._to_files
        for row in write(name, encoded, made):
            rows.append(row)
            yield 1
        ShardRecord(made, rows).write(record)

    def _to_shard(
        self, name: str, encoded: Iterator[tuple[Row, bytes]], made: dict[str, int]
    ) -> Iterator[Row]:
        with whole_file(self.folder / name) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for row, data in encoded:
                    if data:
                        row["offset"] = add_member(tar, file, f"{row['key']}.jpg", data)
                        suffix, label = self._label_member(row)
                        add_member(tar, file, f"{row['key']}{suffix}", label)
                    yield row
            made[name] = file.tell()

    def _label_member(self, row: Row) -> tuple[str, bytes]:
        return member(self.contents.kind, self.contents.classes, row["label"])

    def _to_files(
        self, _name: str, encoded: Iterator[tuple[Row, bytes]], made: dict[str, int]
    ) -> Iterator[Row]:
        for row, data in encoded:
            if data:
                name = f"{row['key']}.jpg"
                file = self.folder / PurePosixPath(name)
                with naming(file):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(data)
                made[name] = len(data)
            yield row
        os.sync()  # the files must be on disk before their record

    def _encode(self, entry: Entry) -> tuple[Row, bytes]:
        """The file's row, and the JPEG to store: empty if the file is rejected."""
        try:
            if entry.rejected:
                raise RejectedError(entry.rejected)
            original, encoded = encode(self.contents.root / entry.path, self.options)
        except RejectedError as error:
            return {"path": entry.path, "rejected": str(error)}, b""
        digest = hashlib.blake2b(original, digest_size=8).digest()
        row = vars(encoded) | {
            "path": entry.path,
            "key": entry.key,
            "label": json.loads(entry.label) if isinstance(entry.label, str) else entry.label,
            "offset": 0,
            "length": len(encoded.data),
            "crc32": zlib.crc32(encoded.data),
            "digest": int.from_bytes(digest, "little"),
            "source_bytes": len(original),
            "index": b64encode(encoded.index).decode(),
        }
        return row, row.pop("data")


def add_member(tar: tarfile.TarFile, file: BinaryIO, name: str, data: bytes) -> int:
    """Append a member without any metadata; returns the offset of its data in `file`."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
    return file.tell() + -len(data) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
