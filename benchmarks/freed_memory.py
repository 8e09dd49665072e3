"""What a measurement does about the memory that it frees."""

from __future__ import annotations

import ctypes


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory at once instead of returning it to the kernel.

    Otherwise the heap's layout decides by chance whether a result's pages are new. New pages cost
    page faults, up to 0.15 ms per 256x256 image, and not the same for all contenders.
    """
    trim_threshold, mmap_threshold = -1, -3  # mallopt(3)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 32 << 20)
