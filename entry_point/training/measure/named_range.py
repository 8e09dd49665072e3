"""Names for parts of a step, as the profiler shows them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

_NOTHING = nullcontext()


def named_range(name: str) -> AbstractContextManager[Any]:
    """Where no profiler runs, `record_function` would still cost some microseconds."""
    return record_function(name) if _profiler_enabled() else _NOTHING
