"""One shard of the plan: the unit that is done whole or again."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from entry_point.config.packing_config import OptimizeConfig
from entry_point.contract.whole_file import naming, whole_file
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.packing.convert import RejectedError
from entry_point.data.packing.encode import Encoded, encode
from entry_point.data.packing.record import Record
from entry_point.data.packing.source_files import Entry
from entry_point.data.packing.tar import TarWriter

_AHEAD_PER_WORKER = 4


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    entry: Entry
    encoded: Encoded | None
    digest: int
    source_bytes: int
    rejected: str


@dataclass(frozen=True)
class ShardPacker:
    """Packs entries of one source into shards, or files, under one folder."""

    source: Path
    folder: Path
    options: OptimizeConfig
    pool: Executor
    workers: int

    def pack(self, name: str, entries: list[Entry], record: Path) -> Iterator[int]:
        """Write one shard, yielding 1 for each file done; `record` appears when all is written."""
        made: dict[str, int] = {}
        rows: list[dict[str, Any]] = []
        outcomes = map_ahead(self.pool, self._encode, entries, self.workers * _AHEAD_PER_WORKER)
        write = self._to_shard if self.options.output_format == "shards" else self._to_files
        for row in write(name, outcomes, made):
            rows.append(row)
            yield 1
        Record(made, rows).write(record)

    def _to_shard(
        self, name: str, outcomes: Iterator[Outcome], made: dict[str, int]
    ) -> Iterator[dict[str, Any]]:
        with whole_file(self.folder / name) as file:
            tar = TarWriter(file)
            for outcome in outcomes:
                offset = -1
                if outcome.encoded is not None:
                    offset = tar.add(f"{outcome.entry.key}.jpg", outcome.encoded.data)
                    tar.add(f"{outcome.entry.key}.cls", str(outcome.entry.label).encode())
                yield _row(outcome, offset)
            tar.finish()
            made[name] = file.tell()

    def _to_files(
        self, _name: str, outcomes: Iterator[Outcome], made: dict[str, int]
    ) -> Iterator[dict[str, Any]]:
        for outcome in outcomes:
            if outcome.encoded is not None:
                name = f"{outcome.entry.key}.jpg"
                file = self.folder / PurePosixPath(name)
                with naming(file):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(outcome.encoded.data)
                made[name] = len(outcome.encoded.data)
            yield _row(outcome, 0)
        os.sync()  # once for all of them: their record must not outlive them

    def _encode(self, entry: Entry) -> Outcome:
        if entry.rejected:
            return Outcome(entry, None, 0, 0, entry.rejected)
        try:
            original, encoded = encode(self.source / entry.path, self.options)
        except RejectedError as error:
            return Outcome(entry, None, 0, entry.bytes, str(error))
        digest = int.from_bytes(hashlib.blake2b(original, digest_size=8).digest(), "little")
        return Outcome(entry, encoded, digest, len(original), "")


def _row(outcome: Outcome, offset: int) -> dict[str, Any]:
    """The record of one file: an index row with a few words more, or why there is none."""
    entry, encoded = outcome.entry, outcome.encoded
    if encoded is None:
        return {"path": entry.path, "rejected": outcome.rejected}
    return {
        "path": entry.path,
        "key": entry.key,
        "label": entry.label,
        "offset": offset,
        "length": len(encoded.data),
        "height": encoded.height,
        "width": encoded.width,
        "orientation": encoded.orientation,
        "interval": encoded.interval,
        "crc32": zlib.crc32(encoded.data),
        "digest": outcome.digest,
        "source_bytes": outcome.source_bytes,
        "how": encoded.how,
        "note": encoded.note,
    }
