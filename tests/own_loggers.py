"""Small custom loggers for the tests; most of them misbehave in one way."""

from __future__ import annotations

import time

from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun


class Failing:
    """Fails with its second record."""

    def __init__(self, run: LoggedRun) -> None:
        self.records = list(run.earlier)

    def log(self, record: Record) -> None:
        self.records.append(record)
        if len(self.records) == 2:
            raise RuntimeError("the server is gone\nand a second line")

    def close(self) -> None: ...


class Unopened(Failing):
    """Cannot be opened."""

    def __init__(self, run: LoggedRun) -> None:
        raise PermissionError(13, "Permission denied", str(run.folder.root))


class Empty:
    """Has no methods."""

    def __init__(self, run: LoggedRun) -> None: ...


class Emptying(Failing):
    """Takes out of a record what it has used."""

    def log(self, record: Record) -> None:
        record.clear()


class Slow(Failing):
    """Takes a minute per record."""

    def log(self, _record: Record) -> None:
        time.sleep(60)


class Unclosable(Failing):
    """Fails when it is closed."""

    def log(self, record: Record) -> None: ...

    def close(self) -> None:
        raise TimeoutError
