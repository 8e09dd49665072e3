"""The published operator's technique, in crop_skip.cpp."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from custom_op.toolchain import find_toolchain


@cache
def _library() -> ctypes.CDLL:
    toolchain = find_toolchain()
    source = str(Path(__file__).with_name("crop_skip.cpp"))
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/crop_skip.so"
        command = [toolchain.compiler, "-O3", "-fPIC", "-shared", source, "-o", library]
        subprocess.run([*command, *toolchain.link_flags], check=True)
        return ctypes.CDLL(library)


def crop_skip(data: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """uint8 `(3, height, width)`; the first and last column may differ from a whole decode."""
    out = torch.empty((height, width, 3), dtype=torch.uint8)
    _library().crop_skip(
        ctypes.c_void_p(data.data_ptr()), ctypes.c_ulong(len(data)),
        top, left, height, width, ctypes.c_void_p(out.data_ptr()),
    )  # fmt: skip
    return out.permute(2, 0, 1)
