"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")

_SECONDS_BETWEEN_LINES = 10.0


def track(items: Iterable[Item], total: int, title: str) -> Iterator[Item]:
    """The items themselves, while showing how many of `total` have passed."""
    return _bar(items, total, title) if sys.stderr.isatty() else _lines(items, total, title)


def _bar(items: Iterable[Item], total: int, title: str) -> Iterator[Item]:
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, rate="")
        started = time.monotonic()
        for done, item in enumerate(items, 1):
            yield item
            rate = done / (time.monotonic() - started + 1e-9)
            progress.update(task, completed=done, rate=f"{rate:.0f} images/s")


def _lines(items: Iterable[Item], total: int, title: str) -> Iterator[Item]:
    started = spoke = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if done == total or now - spoke >= _SECONDS_BETWEEN_LINES:
            spoke = now
            rate = done / (now - started + 1e-9)
            left = (total - done) / rate
            sys.stderr.write(
                f"{title}: {done} of {total}, {rate:.0f} images/s, {left:.0f} s left\n"
            )
            sys.stderr.flush()
