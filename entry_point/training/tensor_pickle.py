"""Reads the tensors of a pickle and skips every other object; torch.load takes this module as its
`pickle_module`.

Training programs save more than tensors: their arguments, their optimizer, a score of NumPy. With
any of these, torch's own reader (`weights_only=True`) refuses the file. Here, whatever else a file
names becomes a `Skipped`: nothing of it is imported or called, and no object gets a state.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any, BinaryIO, ClassVar

import torch

_REBUILD = (
    *("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"),
    *("_rebuild_parameter", "_rebuild_parameter_with_state"),
)
_TAKEN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    **{("torch._utils", name): getattr(torch._utils, name) for name in _REBUILD},
}


class Skipped:
    """Stands for an object that is not a tensor; its class has the name of the object's class."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Skipped:
        """Ignore what the object would be made of."""
        return super().__new__(cls)

    def __call__(self, *_args: object, **_kwargs: object) -> Skipped:
        """Ignore a call of what a skipped call has returned."""
        return self

    def _ignore(self, *_items: object) -> None:
        """Ignore what a list, a set or a dict of another class would hold."""

    append = extend = add = update = __setitem__ = _ignore


class Unpickler(pickle._Unpickler):
    """Python's unpickler, which calls nothing but what rebuilds tensors."""

    # A state could replace attributes of what is called.
    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: lambda unpickler: unpickler.stack.pop(),
    }

    def find_class(self, module: str, name: str) -> Any:
        """Returns what rebuilds a tensor, else a class of skipped objects."""
        if (module, name) in _TAKEN:
            return _TAKEN[module, name]
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        return type(f"{module}.{name}", (Skipped,), {})


def load(file: BinaryIO, **options: Any) -> Any:
    """Read one pickle, as pickle.load does."""
    return Unpickler(file, **options).load()
