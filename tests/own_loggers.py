"""Small custom loggers for the tests; most of them misbehave in one way."""

from __future__ import annotations

import hashlib
import os
import sys
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


class Slow(Failing):
    """Takes a minute per record."""

    def log(self, _record: Record) -> None:
        time.sleep(60)


class Unclosable(Failing):
    """Fails when it is closed."""

    def log(self, record: Record) -> None: ...

    def close(self) -> None:
        raise TimeoutError


class Telling(Failing):
    """Leaves a hash of the URI that it got; its error tells the URI."""

    def __init__(self, run: LoggedRun, uri: str) -> None:
        super().__init__(run)
        self.uri = uri
        digest = hashlib.sha256(uri.encode()).hexdigest()
        (run.folder.output_data / "digest").write_text(digest)

    def log(self, _record: Record) -> None:
        sys.stderr.write(f"connecting to {self.uri} as in {os.environ['MLFLOW_TRACKING_URI']}\n")
        raise ConnectionError(f"{self.uri} refuses")
