"""Packed datasets as version 1 wrote them: the side indexes are in the index file."""

from __future__ import annotations

import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.entry_point.data.packing.pack_command import copy

_HEADER_BYTES = 4096


def version_1(packed: Path, target: Path) -> Path:
    """A copy of a packed dataset, byte for byte as version 1 would have packed it."""
    root = copy(packed, target)
    for file in root.glob("dataset*.json"):
        part = json.loads(file.read_bytes())
        part["version"] = 1
        for split, described in part["splits"].items():
            index = root / split / file.name.replace("dataset", "index").replace(".json", "")
            _rewrite(root / split, described, index.with_name(f"{index.name}.safetensors"))
        file.write_text(json.dumps(part, indent=1, ensure_ascii=False))
    return root


def _rewrite(folder: Path, described: dict[str, Any], index: Path) -> None:
    """Move the side indexes out of the shards, into the index file."""
    if not described["shards"]:
        described["side_crc32"] = 0
        return
    columns: dict[str, Any] = load_file(index)
    contents = [(folder / shard["file"]).read_bytes() for shard in described["shards"]]
    places = zip(*(columns[name].tolist() for name in ("shard", *_SIDE)), strict=True)
    side = b"".join(contents[n][start : start + length] for n, start, length in places)
    lengths = columns["side_length"]
    columns["side_offset"] = _HEADER_BYTES + np.cumsum(lengths, dtype=np.int64) - lengths
    described["side_crc32"], described["table_crc32"] = _write(index, columns, side)
    for shard in described["shards"]:
        _cut(folder / shard["file"])
        content = (folder / shard["file"]).read_bytes()
        shard |= {"bytes": len(content), "crc32": zlib.crc32(content)}


_SIDE = ("side_offset", "side_length")
_ORDER = (
    *("label", "shard", "offset", "length", "height", "width", "orientation", "crc32"),
    *("label_end", "side_length", "key_end", "key", "side_offset"),
)
_NAMES = {"int64": "I64", "int32": "I32", "uint32": "U32", "float32": "F32"}
_NAMES |= {"int8": "I8", "uint8": "U8"}


def _write(index: Path, columns: dict[str, Any], side: bytes) -> tuple[int, int]:
    """Returns the checksums of the side indexes and of the rest."""
    side += bytes(-len(side) % 8)
    end = len(side)
    header = {"side_index": {"dtype": "U8", "shape": [end], "data_offsets": [0, end]}}
    content = b""
    ordered = [(name, columns[name]) for name in _ORDER if name in columns]
    for name, column in sorted(ordered, key=lambda each: -each[1].itemsize):
        start, end = end, end + column.nbytes
        described = {"dtype": _NAMES[column.dtype.name], "shape": list(column.shape)}
        header[name] = described | {"data_offsets": [start, end]}
        content += column.tobytes()
    text = json.dumps(header).encode().ljust(_HEADER_BYTES - 8)
    first = len(text).to_bytes(8, "little") + text
    index.write_bytes(first + side + content)
    return zlib.crc32(side), zlib.crc32(first, zlib.crc32(content))


def _cut(shard: Path) -> None:
    """Remove the last member, the side indexes."""
    with tarfile.open(shard) as tar:
        end = tar.getmember("__side_index__").offset
    content = shard.read_bytes()[:end] + bytes(2 * tarfile.BLOCKSIZE)
    shard.write_bytes(content + bytes(-len(content) % tarfile.RECORDSIZE))
