"""The cache loads nothing that another user could have planted, and says when it cannot be used."""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import custom_op.build as building
from custom_op import BuildError
from custom_op.build import build, build_key
from custom_op.toolchain import find_toolchain

FORK = multiprocessing.get_context("fork")
STRANGER = 12345

pytestmark = pytest.mark.usefixtures("sources")


def share(bits: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(path.stat().st_mode | bits)


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to a second user")
    os.chown(path, STRANGER, STRANGER)


def link(path: Path) -> None:
    """To a file that others can write."""
    path.rename(elsewhere := path.parents[1] / "planted.so")
    elsewhere.chmod(0o666)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("part", "open_up"),
    [
        pytest.param("", share(0o020), id="folder, group"),
        pytest.param("", share(0o002), id="folder, world"),
        pytest.param("", give_away, id="folder, owner"),
        pytest.param("KEY", share(0o020), id="build, group"),
        pytest.param("KEY.lock", share(0o002), id="lock, world"),
        pytest.param("KEY/build.json", share(0o020), id="record, group"),
        pytest.param("KEY/custom_op.so", share(0o002), id="library, world"),
        pytest.param("KEY/custom_op.so", give_away, id="library, owner"),
        pytest.param("KEY/custom_op.so", link, id="library, link"),
    ],
)
def test_cache_that_others_can_change_is_ignored_with_one_line(
    cache: Path,
    temporary: Path,
    part: str,
    open_up: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also the folder in the temporary directory, whose name everybody knows."""
    for folder in (cache, temporary / f"custom_op-{os.getuid()}"):
        library, _ = build()
        assert library.is_relative_to(folder)
        open_up(path := folder / part.replace("KEY", library.parent.name))
        caplog.clear()
        with contextlib.suppress(BuildError):
            assert not build()[0].is_relative_to(folder)
        refusals = [line for line in caplog.messages if f"cannot use the cache {folder}:" in line]
        assert len(refusals) == 1 and f"other users can change {path};" in refusals[0]


def build_as_stranger(key: str) -> Path:
    # The sources are private to root here.
    pytest.MonkeyPatch().setattr(building, "build_key", lambda _: key)
    os.setgid(STRANGER)
    os.setuid(STRANGER)
    return build()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a second user")
def test_read_only_cache_of_root_is_used_by_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the prebuilt cache of the image."""
    with tempfile.TemporaryDirectory(dir="/tmp") as public:
        Path(public).chmod(0o755)
        monkeypatch.setenv("CUSTOM_OP_CACHE", f"{public}/cache")
        Path(public, "cache").mkdir(mode=0o755)
        library, _ = build()
        with FORK.Pool(1) as pool:
            assert pool.apply(build_as_stranger, (build_key(find_toolchain()),)) == library


def test_build_under_an_open_umask_is_trusted_by_the_next_process(cache: Path) -> None:
    before = os.umask(0)
    try:
        library, _ = build()
    finally:
        os.umask(before)
    assert build()[0] == library and library.is_relative_to(cache)


@contextlib.contextmanager
def a_file(cache: Path) -> Iterator[str]:
    cache.write_text("")
    yield os.strerror(errno.EEXIST)


@contextlib.contextmanager
def no_locks(cache: Path) -> Iterator[str]:
    """As on NFS without a lock service."""
    flock = fcntl.flock

    def refusing(file: Any, operation: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(cache):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(file, operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", refusing)
        yield os.strerror(errno.ENOLCK)


@contextlib.contextmanager
def a_full_disk(cache: Path) -> Iterator[str]:
    cache.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", cache]).returncode:
        pytest.skip("mounting a small file system needs root with CAP_SYS_ADMIN")
    try:
        yield os.strerror(errno.ENOSPC)
    finally:
        subprocess.run(["umount", cache], check=True)


@pytest.mark.parametrize("make", [a_file, no_locks, a_full_disk])
def test_unusable_cache_is_replaced_by_a_temporary_folder(
    make: Callable[[Path], AbstractContextManager[str]],
    cache: Path,
    temporary: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with make(cache) as reason:
        assert build()[0].is_relative_to(temporary / f"custom_op-{os.getuid()}")
    assert f"cannot use the cache {cache}: {reason}" in caplog.text


def build_on_a_full_disk() -> None:
    """A limit on the size of files stands for it: every write beyond it fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    build()


def test_full_disk_is_named_at_once_and_nothing_is_compiled(
    cache: Path, temporary: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    log = tmp_path / "compiled"
    compiler(f'case "$*" in *" -c "*) echo "$*" >> {log};; esac')
    with FORK.Pool(1) as pool, pytest.raises(BuildError, match=r"8 MB.*CUSTOM_OP_CACHE") as raised:
        pool.apply(build_on_a_full_disk)
    for folder in (cache, temporary / f"custom_op-{os.getuid()}"):
        assert f"cannot use the cache {folder}: File too large" in str(raised.value)
    assert not log.exists()
