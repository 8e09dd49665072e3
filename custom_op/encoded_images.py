"""The encoded images of a batch: a list of tensors, or one buffer that holds them all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Packed = tuple[Tensor, Tensor, Tensor]
"""`(buffer, offsets, lengths)`: uint8 bytes; start and length of each image, int64 `(N,)`."""


def operator_arguments(
    jpegs: Sequence[Tensor] | Packed,
) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    """What the operators take: the tensors, then the offsets and lengths of a packed batch."""
    if isinstance(jpegs, tuple):
        buffer, offsets, lengths = jpegs
        return [buffer], offsets, lengths
    return list(jpegs), None, None
