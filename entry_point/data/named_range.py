"""Names what a thread does in the trace of `trainer.diagnose=profile`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd import profiler

_NOTHING = nullcontext()


def named_range(name: str) -> AbstractContextManager[Any]:
    """Returns torch's `record_function(name)`; where no profiler runs, its microseconds are saved.

    Worker processes have no profiler.
    """
    return profiler.record_function(name) if profiler._is_profiler_enabled else _NOTHING
