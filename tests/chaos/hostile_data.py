"""Forges datasets: random damage to a packed one, hostile names and pipes among images."""

from __future__ import annotations

import json
import os
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np

NAMES = (
    "[metrics] val_accuracy=0.999 .jpg",
    "\x1b[2J\x1b[31mred.jpg",
    "a\n[metrics] epoch=7 val_loss=7 \n.jpg",
    "caf\udce9.jpg",
    "\u202egpj.jpg",
    "-rf.jpg",
    "'\"`$(reboot);.jpg",
    f"{'n' * 251}.jpg",
)
_VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2**31, 2**63 - 1, -(2**63), 1.5, "", "../../x", "/etc/passwd", "\0", "\udce9"),
    *(None, True, [], {}),
)


def disturb_names(draw: random.Random, root: Path) -> None:
    """Rename some images, damage some, and put pipes and links that lead nowhere beside them."""
    for file in draw.sample(sorted(root.glob("*/*/*.jpg")), 6):
        name = draw.choice(NAMES)
        file.rename(file.with_name(name))
    for split in ("train", "val"):
        folder = root / split / draw.choice(sorted(path.name for path in (root / split).iterdir()))
        (folder / f"0{draw.choice(NAMES)}"[:255]).write_bytes(draw.randbytes(draw.randint(0, 300)))
        os.mkfifo(folder / "pipe.jpg")
        (folder / "loop.jpg").symlink_to("loop.jpg")


def disturb_dataset(draw: random.Random, root: Path) -> str:
    """Change a packed dataset in one way; returns which."""
    ways = (_flip_bytes, _truncate, _lie_in_index, _lie_in_description)
    return draw.choice(ways)(draw, root)


def _any_file(draw: random.Random, root: Path) -> Path:
    kind = draw.choice(("*.tar", "index.safetensors", "dataset.json"))
    return draw.choice(sorted(root.rglob(kind)))


def _flip_bytes(draw: random.Random, root: Path) -> str:
    file = _any_file(draw, root)
    content = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 20)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    file.write_bytes(content)
    _trust_index(draw, root)
    return f"other bytes in {file.name}"


def _truncate(draw: random.Random, root: Path) -> str:
    file = _any_file(draw, root)
    size = draw.randrange(file.stat().st_size)
    os.truncate(file, size)
    _trust_index(draw, root)
    return f"{file.name} ends after {size} bytes"


def _lie_in_index(draw: random.Random, root: Path) -> str:
    file = draw.choice(sorted(root.rglob("index.safetensors")))
    data = np.fromfile(file, np.uint8)
    first = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:first].tobytes())
    name = draw.choice(sorted(header))
    start, end = (first + place for place in header[name]["data_offsets"])
    wide = {"8": 1, "2": 4, "4": 8}[header[name]["dtype"][-1]]
    value = draw.choice((0, 1, 2**7 - 1, 2**31 - 1, 2**63 - 1, 2**64 - 1))
    if start == end or draw.random() < 0.3:
        described = draw.choice(("dtype", "shape", "data_offsets"))
        header[name][described] = draw.choice(_VALUES)
        text = json.dumps(header).encode()
        text = len(text).to_bytes(8, "little") + text
        data = np.concatenate([np.frombuffer(text, np.uint8), data[first:]])
    else:
        row = start + wide * draw.randrange((end - start) // wide)
        data[row : row + wide] = np.frombuffer(value.to_bytes(8, "little")[:wide], np.uint8)
    data.tofile(file)
    _set_checksums(root)
    return f"{name}={value!r} in {file.parent.name}"


def _lie_in_description(draw: random.Random, root: Path) -> str:
    file = root / "dataset.json"
    content = json.loads(file.read_text())
    holder: Any = content
    path = ""
    while isinstance(holder, dict | list) and holder:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        parent, key = holder, draw.choice(list(keys))
        path, holder = f"{path}/{key}", holder[key]
        if draw.random() < 0.3:
            break
    value = parent[key] = draw.choice(_VALUES)
    file.write_text(json.dumps(content))
    return f"{path}={value!r} in dataset.json"


def _trust_index(draw: random.Random, root: Path) -> None:
    """Often make the checksums fit, so that they do not find the damage."""
    if draw.random() < 0.7:
        _set_checksums(root)


def _set_checksums(root: Path) -> None:
    try:
        content = json.loads((root / "dataset.json").read_bytes())
        for split, description in content["splits"].items():
            index = (root / split / "index.safetensors").read_bytes()
            description["table_crc32"] = zlib.crc32(index)
            for shard in description["shards"]:
                content_of_shard = (root / split / shard["file"]).read_bytes()
                shard["bytes"], shard["crc32"] = len(content_of_shard), zlib.crc32(content_of_shard)
        (root / "dataset.json").write_text(json.dumps(content))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        pass  # it is beyond that
