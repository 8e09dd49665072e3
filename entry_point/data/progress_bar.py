"""Progress on standard error: a bar on a terminal, otherwise a line every few seconds.

A job in a container gets lines: its output is collected as a log, even if that is a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from entry_point.contract.run_folder import logs_are_collected

Item = TypeVar("Item")

_SECONDS_BETWEEN_LINES = 10.0


def _one(_item: object) -> int:
    return 1


def track(
    items: Iterable[Item],
    total: int,
    title: str,
    done: int = 0,
    images_of: Callable[[Item], int] = _one,
) -> Iterator[Item]:
    """Pass the items through and show how many of `total` images have passed.

    `done` images passed in an earlier run; they count as progress but not as throughput. An item
    is one image, or as many as `images_of` says.
    """
    show = _bar if sys.stderr.isatty() and not logs_are_collected() else _lines
    return show(_counted(items, done, images_of), total, title, done)


def _counted(
    items: Iterable[Item], done: int, images_of: Callable[[Item], int]
) -> Iterator[tuple[int, Item]]:
    """Each item, and how many images have passed with it."""
    for item in items:
        done += images_of(item)
        yield done, item


def _bar(items: Iterable[tuple[int, Item]], total: int, title: str, before: int) -> Iterator[Item]:
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, completed=before, rate="")
        started = time.monotonic()
        for done, item in items:
            yield item
            rate = (done - before) / (time.monotonic() - started + 1e-9)
            progress.update(task, completed=done, rate=f"{rate:.0f} images/s")


def _lines(
    items: Iterable[tuple[int, Item]], total: int, title: str, before: int
) -> Iterator[Item]:
    started = printed = time.monotonic()
    for done, item in items:
        yield item
        now = time.monotonic()
        if done == total or now - printed >= _SECONDS_BETWEEN_LINES:
            printed = now
            rate = (done - before) / (now - started + 1e-9)
            left = (total - done) / rate
            sys.stderr.write(
                f"{title}: {done} of {total}, {rate:.0f} images/s, {left:.0f} s left\n"
            )
            sys.stderr.flush()
