"""What a policy is, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from custom_op.augment_ops import COLUMNS, NUMBERS, PARAMETERS

Floats = NDArray[np.float32]
Uniform = NDArray[np.float64]


class Policy(Protocol):
    """Turns random numbers into operations."""

    @property
    def draws(self) -> int:
        """Random numbers that a sample takes."""
        ...

    def table(self, u: Uniform, side: int) -> Floats:
        """Returns the operations of N samples of `side` pixels, float32 (N, K, 8).

        `u` are numbers in [0, 1), float64 (draws, N).
        """
        ...


def row(name: str, *values: float) -> Floats:
    """Returns an operation with its first parameters in the order of PARAMETERS, float32 (8,)."""
    assert len(values) == len(PARAMETERS[name]), name
    cells = np.zeros(COLUMNS, dtype=np.float32)
    cells[0] = NUMBERS[name]
    cells[1 : 1 + len(values)] = values
    return cells


def rows(name: str, *values: float | Uniform) -> Floats:
    """Returns the same for N samples, float32 (N, 8), from a parameter or one for each sample."""
    columns = np.broadcast_arrays([float(NUMBERS[name])], *values)
    cells = np.zeros((len(columns[0]), COLUMNS), dtype=np.float32)
    cells[:, : len(columns)] = np.stack(columns, axis=1)
    return cells


def choice(u: Uniform, count: int) -> NDArray[np.intp]:
    """Numbers from 0 to before `count`, equally likely."""
    return (u * count).astype(np.intp)


def between(u: Uniform, pair: Sequence[float]) -> Uniform:
    """Numbers from the first of `pair` to the second."""
    return pair[0] + u * (pair[1] - pair[0])


def applied(cells: Floats, where: NDArray[np.bool_]) -> Floats:
    """Returns the rows `where`, the identity elsewhere."""
    shape = where.shape + (1,) * (cells.ndim - where.ndim)
    return np.where(where.reshape(shape), cells, np.float32(0))
