"""Compiles the operator on first use, in the environment that trains.

Processes that start together share a lock. The first one compiles into a temporary folder and
renames it when it is complete; the others load the result. The kernel releases the lock when its
holder exits, so nothing waits for a killed build, and the next build removes its temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from custom_op.toolchain import BuildError, Toolchain, find_toolchain

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("csrc")
_LIBRARY = "custom_op.so"
_RECORD = "build.json"


def build() -> tuple[Path, dict[str, Any]]:
    """The compiled library and the record of its build. Compiles it if the cache has none.

    The cache is the folder `CUSTOM_OP_CACHE`, or `~/.cache/custom_op`; if that cannot be written, a
    folder in the system's temporary directory. A library found in the cache is used without any
    write, so a read-only cache works. Raises BuildError if the library cannot be compiled.
    """
    toolchain = find_toolchain()
    key = build_key(toolchain)
    folders = _cache_folders()
    for folder in folders:
        if (found := _read(folder / key)) is not None:
            return found
    folder = _first_writable(folders)
    target = folder / key
    with _locked(folder / f"{key}.lock", target):
        return _read(target) or _compile(toolchain, folder, target)


def build_key(toolchain: Toolchain) -> str:
    """A hash of everything that the compiled library depends on."""
    digest = hashlib.sha256()
    for path in sorted(p for p in SOURCES.rglob("*") if p.is_file()):
        digest.update(
            path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    for part in (torch.__version__, *toolchain.identity(), platform.machine(), _cpu()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """The CPU as `-march=native` sees it, because hosts with different CPUs may share a cache."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    lines = cpuinfo.read_text(errors="replace").splitlines()
    wanted = ("model name", "flags", "Features", "CPU part", "CPU variant")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _cache_folders() -> list[Path]:
    """The folders that may hold the library, in the order of preference for a new one."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    fallback = Path(tempfile.gettempdir()) / f"custom_op-{user}"
    if named := os.environ.get("CUSTOM_OP_CACHE"):
        return [Path(named).absolute(), fallback]
    home = os.environ.get("XDG_CACHE_HOME") or (
        f"{os.environ['HOME']}/.cache" if os.environ.get("HOME", "/") != "/" else None
    )
    return [Path(home).absolute() / "custom_op", fallback] if home else [fallback]


def _first_writable(folders: list[Path]) -> Path:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            logger.warning("custom_op: cannot write the cache %s: %s", folder, error.strerror)
            continue
        if folder is folders[-1] and hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            raise BuildError(
                f"{folder} belongs to another user; set CUSTOM_OP_CACHE to a folder of yours"
            )
        return folder
    tried = ", ".join(map(str, folders))
    raise BuildError(f"cannot write to {tried}; set CUSTOM_OP_CACHE to a writable folder")


def _read(target: Path) -> tuple[Path, dict[str, Any]] | None:
    try:
        record: dict[str, Any] = json.loads((target / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    return target / _LIBRARY, record


@contextlib.contextmanager
def _locked(path: Path, target: Path) -> Iterator[None]:
    """Holds the lock; logs a warning if another process holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        logger.warning("custom_op: waiting for another process to build %s", target)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _compile(toolchain: Toolchain, folder: Path, target: Path) -> tuple[Path, dict[str, Any]]:
    """Compiles into a temporary folder beside `target`, then renames it. Needs the lock."""
    for leftover in folder.glob(f"{target.name}.tmp*"):
        shutil.rmtree(leftover, ignore_errors=True)
    logger.info("custom_op: building %s", target)
    started = time.perf_counter()
    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp", dir=folder))
    try:
        _run_all(toolchain.compile_commands(SOURCES, temporary))
        _run_all([toolchain.link_command(sorted(temporary.glob("*.o")), temporary / _LIBRARY)])
        for intermediate in temporary.glob("*.o"):
            intermediate.unlink()
        seconds = round(time.perf_counter() - started, 3)
        record = {**toolchain.record(), "torch": torch.__version__, "build_seconds": seconds}
        (temporary / _RECORD).write_text(json.dumps(record, indent=2))
        temporary.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    logger.info("custom_op: built in %.1f s", seconds)
    return target / _LIBRARY, record


def _run_all(commands: list[list[str]]) -> None:
    """Runs the commands in parallel, one per core. Raises BuildError if one fails."""
    with ThreadPoolExecutor(os.cpu_count() or 1, "compile") as pool:
        list(pool.map(_run, commands))  # an error cancels the commands that have not started


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise BuildError(
            f"cannot compile the operator. Command:\n{' '.join(command)}\nLast lines:\n{last}"
        )
