"""The file whose first 1024 characters SageMaker shows as the job's failure reason."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from entry_point.contract.run_folder import RunFolder, RunFolderError

LIMIT = 1024


def failure_text(error: BaseException) -> str:
    """The error, then as many of the traceback's last lines as fit."""
    headline = "".join(traceback.format_exception_only(error)).strip()[: LIMIT // 2]
    trace = "".join(traceback.format_tb(error.__traceback__))
    room = LIMIT - len(headline) - 1
    if len(trace) > room:
        trace = trace[-room:].partition("\n")[2]
    return f"{headline}\n{trace}".rstrip()


def leave_failure(error: Exception, reason: str) -> bool:
    """Write the reason to the run folder's output/failure; False if there is one already.

    A missing run folder gets none, nor does a busy one: its file belongs to the job that runs.
    """
    if isinstance(error, RunFolderError):
        return True
    return write_failure(RunFolder.from_environment().failure, reason)


def write_failure(path: Path, text: str) -> bool:
    """Write the reason unless the file exists: the first rank to fail knows best."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text[:LIMIT], encoding="utf-8")
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True
