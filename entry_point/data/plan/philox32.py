"""Philox4x32-10 in torch: random bits as a function of their place, on any device.

Of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). philox.py makes 64-bit
words in numpy; this one needs nothing but 64-bit integers, which every device has.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox32(key: tuple[int, int], counter: Tensor) -> Tensor:
    """Random 32-bit words for each counter: int64 `(4, N)` -> int64 `(4, N)`."""
    multipliers, keys = _constants(key, counter.device)
    factors, others = counter[0::2], counter[1::2]
    for round_key in keys:
        product = factors * multipliers
        high = product.bitwise_right_shift(32).bitwise_and_(WORD).flip(0)
        factors = high.bitwise_xor_(others).bitwise_xor_(round_key)
        others = product.bitwise_and_(WORD).flip(0)
    return torch.stack([factors, others], 1).reshape(4, -1)


@cache
def _constants(key: tuple[int, int], device: torch.device) -> tuple[Tensor, tuple[Tensor, ...]]:
    multipliers = torch.tensor(_MULTIPLIERS, device=device).unsqueeze(1)
    keys = [
        [[(word + step * i) & WORD] for word, step in zip(key, _KEY_STEPS, strict=True)]
        for i in range(_ROUNDS)
    ]
    return multipliers, torch.tensor(keys, device=device).unbind()
