"""The file whose first 1024 characters SageMaker shows as the job's failure reason."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

LIMIT = 1024


def failure_text(error: BaseException) -> str:
    """The error itself first, then as many of the traceback's last lines as fit."""
    headline = "".join(traceback.format_exception_only(error)).strip()[: LIMIT // 2]
    lines = "".join(traceback.format_tb(error.__traceback__)).splitlines()
    kept: list[str] = []
    room = LIMIT - len(headline) - 1
    for line in reversed(lines):
        if len(line) + 1 > room:
            break
        kept.insert(0, line)
        room -= len(line) + 1
    return "\n".join([headline, *kept])


def write_failure(path: Path, text: str) -> bool:
    """Write the reason, whole, unless one is there: the first rank to fail knows best."""
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
