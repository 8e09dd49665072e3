"""Processes many items in threads, and shows the progress on standard error.

On a terminal, progress is one line that is rewritten. Elsewhere, and always in a container, whose
output is collected as a log, it is a new line every 10 seconds.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from entry_point.data.retries import without_retries
from entry_point.job.cores import usable_cores
from entry_point.job.run_folder import logs_are_collected

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD_PER_THREAD = 4

_SECONDS_BETWEEN_LINES, _SECONDS_ON_TERMINAL = 10.0, 0.2
_ERASE_LINE = "\x1b[K"


def track(
    items: Iterable[Item],
    total: int,
    title: str,
    done: int = 0,
    images_of: Callable[[Item], int] = lambda _: 1,
) -> Iterator[Item]:
    """Yield the items, and show how many of `total` images have been yielded.

    `done` images were processed in an earlier run; they count as progress but not as throughput. An
    item is one image, or `images_of(item)` images.
    """
    on_terminal = sys.stderr.isatty() and not logs_are_collected()
    seconds = _SECONDS_ON_TERMINAL if on_terminal else _SECONDS_BETWEEN_LINES
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
    """Yield `map(function, items)` in order, computed by a thread per usable core, and show the
    progress of `track`.

    At most a few calls per thread are in progress or hold a result. Closing or failing cancels the
    calls that have not started.
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
        with without_retries():
            pool.shutdown(cancel_futures=True)
