"""Compiles the operator on first use, in the environment that trains.

Nothing is loaded from a cache that another user can change, because its code would run here.

Processes that start together share a lock. The first one compiles into a temporary folder and
renames it when it is complete; the others load the result. The kernel releases the lock when its
holder exits, so nothing waits for a killed build, and the next build removes its temporary folder.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
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
_NEEDED_MB = 8
"""Space that a build takes in the cache folder, the compiler's temporary files included."""
_warn_once = functools.cache(logger.warning)


def build() -> tuple[Path, dict[str, Any]]:
    """The compiled library and the record of its build. Compiles it if the cache has none.

    The cache is the folder `CUSTOM_OP_CACHE`, or `~/.cache/custom_op`; if that cannot be written, a
    folder in the system's temporary directory. A library found in the cache is used without any
    write, so a read-only cache works. A cache that another user can change is ignored. Raises
    BuildError if the library cannot be compiled.
    """
    toolchain = find_toolchain()
    key = build_key(toolchain)
    folders = _cache_folders()
    for folder in folders:
        try:
            _require_trusted(folder, key)
        except OSError as error:
            _warn_once("custom_op: %s", _problem(folder, error))
            continue
        if (found := _read(folder / key)) is not None:
            return found
    folder = _first_usable(folders, key)
    target = folder / key
    try:
        with _locked(folder / f"{key}.lock", target):
            return _read(target) or _compile(toolchain, folder, target)
    except OSError as error:
        raise BuildError(f"cannot build the operator in {folder}: {error}") from error


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
    fallback = Path(tempfile.gettempdir()) / f"custom_op-{os.getuid()}"
    if named := os.environ.get("CUSTOM_OP_CACHE"):
        return [Path(named).absolute(), fallback]
    home = os.environ.get("XDG_CACHE_HOME") or (
        f"{os.environ['HOME']}/.cache" if os.environ.get("HOME", "/") != "/" else None
    )
    return [Path(home).absolute() / "custom_op", fallback] if home else [fallback]


def _require_trusted(folder: Path, key: str) -> None:
    """Raises PermissionError if a user other than root can change what this cache would load."""
    target = folder / key
    for path in (folder, folder / f"{key}.lock", target, target / _RECORD, target / _LIBRARY):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for status in (path.lstat(), path.stat()):  # a link, then the file that it names
                shared = status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode)
                if shared or status.st_uid not in (0, os.getuid()):
                    reason = f"other users can change {path}; remove it"
                    raise PermissionError(errno.EPERM, reason)


def _first_usable(folders: list[Path], key: str) -> Path:
    """The first folder that is trusted and has space for a build."""
    problems = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _require_trusted(folder, key)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_NEEDED_MB << 20))
        except OSError as error:
            problems.append(_problem(folder, error))
            continue
        for problem in problems:
            _warn_once("custom_op: %s", problem)
        return folder
    raise BuildError(
        f"no cache folder for a build, which takes {_NEEDED_MB} MB. {'. '.join(problems)}. "
        "Free up space or set CUSTOM_OP_CACHE to a writable folder of yours"
    )


def _problem(folder: Path, error: OSError) -> str:
    return f"cannot use the cache {folder}: {error.strerror}"


def _read(target: Path) -> tuple[Path, dict[str, Any]] | None:
    try:
        record: dict[str, Any] = json.loads((target / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    return target / _LIBRARY, record


@contextlib.contextmanager
def _locked(path: Path, target: Path) -> Iterator[None]:
    """Holds the lock; logs a warning if another process holds it."""
    lock = FileLock(path, mode=0o644)  # see _require_trusted
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
        _run_all(toolchain.compile_commands(SOURCES, temporary), temporary)
        objects = sorted(temporary.glob("*.o"))
        _run_all([toolchain.link_command(objects, temporary / _LIBRARY)], temporary)
        for intermediate in (*objects, *temporary.glob("*.cpp")):
            intermediate.unlink()
        seconds = round(time.perf_counter() - started, 3)
        record = {**toolchain.record(), "torch": torch.__version__, "build_seconds": seconds}
        (temporary / _RECORD).write_text(json.dumps(record, indent=2))
        for path in temporary.iterdir():
            path.chmod(0o644)  # whatever the umask, see _require_trusted
        temporary.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    logger.info("custom_op: built in %.1f s", seconds)
    return target / _LIBRARY, record


def _run_all(commands: list[list[str]], folder: Path) -> None:
    """Runs the commands in parallel, one per core, with `folder` for the compiler's own files.

    Raises BuildError if one fails.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1, "compile") as pool:
        # An error cancels the commands that have not started.
        list(pool.map(functools.partial(_run, folder=folder), commands))


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise BuildError(
            f"cannot compile the operator. Command:\n{' '.join(command)}\nLast lines:\n{last}"
        )
