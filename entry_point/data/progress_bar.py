"""Long work on many items: in threads, with progress on standard error.

Progress is one line that is rewritten on a terminal, else one every few seconds. A job in a
container gets lines: its output is collected as a log, even if that is a terminal.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from entry_point.data.patience import hurried
from entry_point.job.cores import usable_cores
from entry_point.job.run_folder import logs_are_collected

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD_PER_THREAD = 4

_SECONDS_BETWEEN_LINES, _ON_A_TERMINAL = 10.0, 0.2
_ERASE_LINE = "\x1b[K"


def track(
    items: Iterable[Item],
    total: int,
    title: str,
    done: int = 0,
    images_of: Callable[[Item], int] = lambda _: 1,
) -> Iterator[Item]:
    """Pass the items through and show how many of `total` images have passed.

    `done` images passed in an earlier run; they count as progress but not as throughput. An item
    is one image, or as many as `images_of` says.
    """
    on_terminal = sys.stderr.isatty() and not logs_are_collected()
    seconds = _ON_A_TERMINAL if on_terminal else _SECONDS_BETWEEN_LINES
    started = printed = time.monotonic()
    before = done
    for item in items:
        done += images_of(item)
        yield item
        now = time.monotonic()
        if done == total or now - printed >= seconds:
            printed = now
            rate = (done - before) / (now - started + 1e-9)
            left = (total - done) / rate
            line = f"{title}: {done} of {total}, {rate:.0f} images/s, {left:.0f} s left"
            start = _ERASE_LINE if on_terminal else ""
            end = "\r" if on_terminal and done < total else "\n"
            sys.stderr.write(f"{start}{line}{end}")
            sys.stderr.flush()


def in_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    total: int,
    title: str,
    done: int = 0,
) -> Iterator[Result]:
    """`map(function, items)` by a thread per usable core, in order, with the progress of `track`.

    A few results per thread are in progress or waiting. Calls that have not started are cancelled
    when the iterator is closed or fails.
    """
    threads = usable_cores()
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[Result]] = deque()

    def results() -> Iterator[Result]:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= threads * _AHEAD_PER_THREAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield from track(results(), total, title, done)
    finally:
        with hurried():
            pool.shutdown(cancel_futures=True)
