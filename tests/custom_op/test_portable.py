"""The portable build gives the same pixels as the build for this CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from custom_op.toolchain import find_toolchain

DIGEST = """
import hashlib, io, itertools, random
import torch
from PIL import Image
from skimage import data
from custom_op import build_info, decode_crop_resize_batch

rng = random.Random(0)
file = io.BytesIO()
Image.fromarray(data.astronaut()).save(file, "JPEG", quality=90)
jpeg = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
boxes = []
for _ in range(40):
    height, width = rng.randint(1, 512), rng.randint(1, 512)
    boxes.append((rng.randint(0, 512 - height), rng.randint(0, 512 - width), height, width))
flip = torch.arange(40) % 2 == 0
digest = hashlib.sha256()
dtypes = (torch.uint8, torch.float32)
for color, dtype, size in itertools.product(("rgb", "ycbcr"), dtypes, (7, 224)):
    norm = {} if dtype == torch.uint8 else {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.1]}
    batch = decode_crop_resize_batch(
        [jpeg] * 40, torch.tensor(boxes), size, flip=flip, dtype=dtype, color=color, **norm
    )
    digest.update(batch.contiguous().numpy().tobytes())
print("native" if "native" in build_info()["flags"] else "portable", digest.hexdigest())
"""


def test_build_without_native_flags_gives_the_same_pixels(tmp_path: Path) -> None:
    script = tmp_path / "compiler"
    real = find_toolchain().compiler
    script.write_text(f'#!/bin/sh\ncase "$*" in *=native*) exit 1;; esac\nexec {real} "$@"\n')
    script.chmod(0o755)
    native, portable = digest(), digest(CUSTOM_OP_CACHE=str(tmp_path), CXX=str(script))
    assert (native[0], portable[0]) == ("native", "portable")
    assert native[1] == portable[1]


def digest(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", DIGEST],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
