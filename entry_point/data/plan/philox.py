"""Draws random numbers from counters: in any order, without state.

Philox4x64-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). NumPy's
Philox draws one sequence at a time; this one draws for many counters at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], dtype=np.uint64)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_WORD = 1 << 64
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS_LOW, _MULTIPLIERS_HIGH = _MULTIPLIERS & _LOW, _MULTIPLIERS >> _HALF


def philox(key: tuple[int, int], counter: Sequence[int | Words | NDArray[np.int64]]) -> Words:
    """Returns four random 64-bit words for each counter, uint64 (4, ...). The four words of
    `counter` broadcast."""
    words = np.broadcast_arrays(*(np.atleast_1d(np.uint64(word)) for word in counter))
    shape = words[0].shape
    # A round multiplies `factors`, and mixes `others` into the products.
    factors = np.stack([words[0].ravel(), words[2].ravel()])
    others = np.stack([words[3].ravel(), words[1].ravel()])
    for i in range(_ROUNDS):
        round_key = np.array(
            [[(key[j] + i * _KEY_STEPS[j]) % _WORD] for j in (1, 0)], dtype=np.uint64
        )
        high, low = _multiply(factors)
        factors, others = (high ^ others ^ round_key)[::-1], low
    return np.stack([factors[0], others[1], factors[1], others[0]]).reshape(4, *shape)


def unit(words: Words) -> NDArray[np.float64]:
    """Returns numbers in [0, 1), made of the 53 highest bits of the words."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(key: tuple[int, int], count: int, stream: int) -> NDArray[np.int64]:
    """Returns a random order of 0..count-1, the same on every machine and with every NumPy."""
    words = stream_words(key, stream, 0, count)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def stream_words(key: tuple[int, int], stream: int, first: int, count: int) -> Words:
    """Returns the words first..first+count-1 of an endless sequence, uint64 (count,). `first` must
    be a multiple of 4."""
    blocks = np.arange(first // 4, (first + count + 3) // 4, dtype=np.uint64)
    return philox(key, (blocks, stream, 0, 0)).T.reshape(-1)[:count]


def _multiply(factors: Words) -> tuple[Words, Words]:
    """Returns the high and low words of 128-bit products; each row has its own multiplier."""
    low, high = factors & _LOW, factors >> _HALF
    cross, other = _MULTIPLIERS_LOW * high, _MULTIPLIERS_HIGH * low
    middle = ((_MULTIPLIERS_LOW * low) >> _HALF) + (cross & _LOW) + (other & _LOW)
    upper = _MULTIPLIERS_HIGH * high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    return upper, factors * _MULTIPLIERS
