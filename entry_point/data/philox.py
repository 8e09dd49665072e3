"""Random numbers as a function of their place: no state, any draw on its own, in any order.

Philox4x64-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
vectorised over counters; numpy's own Philox makes one stream at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORD = 1 << 64


def philox(key: tuple[int, int], counter: Sequence[int | Words | NDArray[np.int64]]) -> Words:
    """Random 64-bit words for each counter: shape (4, N), for four counter words of shape (N,)."""
    c0, c1, c2, c3 = (
        np.ascontiguousarray(word)
        for word in np.broadcast_arrays(*(np.atleast_1d(np.uint64(word)) for word in counter))
    )
    for i in range(_ROUNDS):
        k0, k1 = (np.uint64((key[j] + i * _KEY_STEPS[j]) % _WORD) for j in range(2))
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return np.stack([c0, c1, c2, c3])


def unit(words: Words) -> NDArray[np.float64]:
    """Words as numbers in [0, 1), from their 53 highest bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(key: tuple[int, int], count: int, stream: int) -> NDArray[np.int64]:
    """A random order of 0..count-1, the same on every machine and numpy version."""
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    words = philox(key, (blocks, stream, 0, 0)).T.reshape(-1)[:count]
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def _multiply(a: np.uint64, b: Words) -> tuple[Words, Words]:
    """High and low words of the 128-bit product."""
    a_low, a_high = a & _LOW, a >> _HALF
    b_low, b_high = b & _LOW, b >> _HALF
    cross, other = a_low * b_high, a_high * b_low
    middle = ((a_low * b_low) >> _HALF) + (cross & _LOW) + (other & _LOW)
    high = a_high * b_high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    return high, a * b
