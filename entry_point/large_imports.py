"""Start and end a process that imports large packages, in less time.

torch and what it imports make a million objects, which live until the process ends. To visit them
all, as Python's garbage collector does, takes up to 0.3 s; to take them apart at exit, more than
a second.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection in this block and in processes forked in it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def large_imports() -> Iterator[None]:
    """Import in this block what stays: the garbage collector never visits it."""
    with no_collection():
        try:
            yield
        finally:
            gc.freeze()
            # Else extensions that count their objects report leaks at exit.
            atexit.register(gc.unfreeze)


def end_process(code: int) -> NoReturn:
    """Exit as `sys.exit(code)` does, but leave it to the kernel to free the modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        sys.exit(code)  # the interpreter reports it
    os._exit(code)


def end_at_once(code: int) -> NoReturn:
    """End this process and those that it has forked, without waiting for any thread or process."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    os._exit(code)
