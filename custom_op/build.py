"""Compiles the operator on first use, in the environment that trains.

A cache that another user can change is not used, because that user's code would run here.

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
import shutil
import stat
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from filelock import AcquireReturnProxy, FileLock, Timeout

from custom_op.compiler import BuildError
from custom_op.toolchain import Toolchain, find_toolchain

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("csrc")
_TOOLCHAIN = Path(__file__).with_name("toolchain.py")
_LIBRARY = "custom_op.so"
_RECORD = "build.json"
_NEEDED_MB = 8
"""MB that a build needs in the cache folder, including temporary files of the compiler."""


def build() -> tuple[Path, dict[str, Any]]:
    """Returns the compiled library and the record of its build. Compiles it if the cache has none.

    The cache is the folder `CUSTOM_OP_CACHE`, or `~/.cache/custom_op`; if that cannot be used, a
    folder in the system's temporary directory. A library found in the cache is used without any
    write, so a read-only cache works. A cache that another user can change is ignored. Raises
    BuildError if the library cannot be compiled.
    """
    toolchain = find_toolchain()
    key = build_key(toolchain)
    problems = []
    for folder in _cache_folders():
        target = folder / key
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _require_trusted(folder, key)
            if (found := _read(target)) is not None:
                return found
            _require_space(folder)
            with _locked(folder / f"{key}.lock", target):
                return _read(target) or _compile(toolchain, target)
        except OSError as error:
            problems.append(f"cannot use the cache {folder}: {error.strerror}")
            logger.warning("custom_op: %s", problems[-1])
    raise BuildError(
        f"no cache folder for a build, which takes {_NEEDED_MB} MB. {'. '.join(problems)}. "
        "Free up space or set CUSTOM_OP_CACHE to a writable folder"
    )


def build_key(toolchain: Toolchain) -> str:
    """Returns a hash of everything but paths that the compiled library depends on.

    `toolchain.macros` include the CPU's instruction sets, because hosts with different CPUs may
    share a cache.
    """
    digest = hashlib.sha256()
    for path in [*sorted(SOURCES.rglob("*.*")), _TOOLCHAIN]:
        name = path.relative_to(SOURCES.parent).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    for part in (torch.__version__, *toolchain.arguments, *toolchain.flags, toolchain.macros):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _cache_folders() -> list[Path]:
    """Returns the cache folders, in the order in which a new build tries them."""
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


def _require_space(folder: Path) -> None:
    """Raises OSError if the folder cannot be written or has no space for a build."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_NEEDED_MB << 20))


def _read(target: Path) -> tuple[Path, dict[str, Any]] | None:
    try:
        record: dict[str, Any] = json.loads((target / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    return target / _LIBRARY, record


def _locked(path: Path, target: Path) -> AcquireReturnProxy:
    """Acquires the lock, which `with` releases; logs a warning if another process holds it.

    Raises OSError if the file system has no locks.
    """
    lock = FileLock(path, mode=0o644)  # see _require_trusted
    try:
        return lock.acquire(timeout=0.1)
    except Timeout:
        logger.warning("custom_op: waiting for another process to build %s", target)
        return lock.acquire()


def _compile(toolchain: Toolchain, target: Path) -> tuple[Path, dict[str, Any]]:
    """Compiles into a temporary folder, then renames it to `target`. The caller holds the lock."""
    for leftover in target.parent.glob(f"{target.name}.tmp*"):
        shutil.rmtree(leftover, ignore_errors=True)
    versions = {**toolchain.versions(), "torch": torch.__version__}
    # A warning, because programs that do not configure logging show no lower levels.
    logger.warning(
        "custom_op: compiling the operator with %s (once per machine, 6 to 10 s on 2 cores)",
        versions["compiler"],
    )
    started = time.perf_counter()
    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp", dir=target.parent))
    try:
        _compile_in(temporary, toolchain)
        seconds = round(time.perf_counter() - started, 3)
        record = {**versions, "flags": " ".join(toolchain.flags), "build_seconds": seconds}
        (temporary / _RECORD).write_text(json.dumps(record, indent=2))
        with contextlib.suppress(PermissionError):  # a file system without permissions
            for path in temporary.iterdir():
                path.chmod(0o644)  # whatever the umask, see _require_trusted
            temporary.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    logger.info("custom_op: built in %.1f s: %s", seconds, target)
    return target / _LIBRARY, record


def _compile_in(folder: Path, toolchain: Toolchain) -> None:
    """Compiles the library into `folder`, and leaves nothing else there."""
    run = functools.partial(_run, folder=folder)
    with ThreadPoolExecutor(os.cpu_count(), "compile") as pool:
        # An error cancels the commands that have not started.
        list(pool.map(run, toolchain.compile_commands(SOURCES, folder)))
    objects = sorted(folder.glob("*.o"))
    run(toolchain.link_command(objects, folder / _LIBRARY))
    for intermediate in (*objects, *folder.glob("*.cpp")):
        intermediate.unlink()


def _run(command: list[str], folder: Path) -> None:
    """Runs the command, with its temporary files in `folder`. Raises BuildError if it fails."""
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
