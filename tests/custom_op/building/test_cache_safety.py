"""The cache loads nothing that another user could have planted, and says when it has no space."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.custom_op.building.build_process import built, copy_tree, run, start

STRANGER = 12345


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The system's temporary directory of the processes: everybody may write to it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a working library."""
    folder = tmp_path_factory.mktemp("made")
    run(copy_tree(folder / "tree"), folder / "cache")
    return folder / "cache"


@pytest.fixture
def filled(made: Path, cache: Path) -> Path:
    """The library in a cache that may be changed."""
    shutil.copytree(made, cache)
    return next(cache.glob("*/custom_op.so"))


@pytest.mark.parametrize(
    ("part", "mode"),
    [
        ("", 0o020), ("", 0o002), ("KEY", 0o020), ("KEY.lock", 0o002),
        ("KEY/build.json", 0o020), ("KEY/custom_op.so", 0o002),
    ],
)  # fmt: skip
def test_cache_that_others_can_write_is_ignored_with_one_line(
    tree: Path, cache: Path, filled: Path, temporary: Path, part: str, mode: int
) -> None:
    path = cache / part.replace("KEY", filled.parent.name)
    path.chmod(path.stat().st_mode | mode)
    output = run(tree, cache, TMPDIR=str(temporary))
    assert built(output).is_relative_to(temporary)
    warnings = [line for line in output.splitlines() if "cannot use the cache" in line]
    assert len(warnings) == 1 and f"other users can change {path};" in warnings[0]


def test_library_linked_from_a_folder_that_others_can_write_is_not_loaded(
    tree: Path, cache: Path, filled: Path, temporary: Path
) -> None:
    elsewhere = temporary / "planted.so"
    filled.rename(elsewhere)
    elsewhere.chmod(0o666)
    filled.symlink_to(elsewhere)
    output = run(tree, cache, TMPDIR=str(temporary))
    assert built(output) != filled
    assert f"other users can change {filled};" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a second user")
def test_cache_made_by_another_user_is_not_loaded(tree: Path, made: Path, public: Path) -> None:
    """The other user plants a working library under the name of the victim's fallback."""
    fallback = public / f"custom_op-{os.getuid()}"
    shutil.copytree(made, public / "made").chmod(0o755)
    public.chmod(0o1777)
    code = f"umask 022; cp -r {public}/made {fallback}"
    subprocess.run(["sh", "-c", code], check=True, user=STRANGER, group=STRANGER, extra_groups=[])
    assert next(fallback.glob("*/custom_op.so")).stat().st_uid == STRANGER

    (public / "file").write_text("")
    process = start(tree, public / "file" / "cache", TMPDIR=str(public))
    output, errors = process.communicate()
    assert process.returncode != 0 and not output
    assert f"other users can change {fallback};" in errors.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a second user")
def test_read_only_cache_of_root_is_used_by_other_users(tree: Path, public: Path) -> None:
    """Like the prebuilt cache of the image."""
    cache = public / "cache"
    cache.mkdir(mode=0o755)
    library = built(run(tree, cache))
    code = """
import os
from custom_op import build as building
key = building.build_key(building.find_toolchain())  # the sources are private to root here
building.build_key = lambda _: key
os.setgid(12345), os.setuid(12345)
print(building.build()[0])
"""
    output = run(tree, cache, code, TMPDIR=str(public))
    assert built(output) == library
    assert "cannot use the cache" not in output


def test_build_under_an_open_umask_is_trusted_by_the_next_process(
    tree: Path, cache: Path, temporary: Path
) -> None:
    code = "import os; os.umask(0)\nfrom custom_op.build import build; print(build()[0])"
    first = run(tree, cache, code, TMPDIR=str(temporary))
    second = run(tree, cache, TMPDIR=str(temporary))
    assert built(first) == built(second)
    assert "cannot use the cache" not in second


def test_full_disk_is_named_at_once_and_nothing_is_compiled(
    tree: Path, cache: Path, tmp_path: Path, temporary: Path, compiler: Callable[[str], Path]
) -> None:
    """A limit on the size of files stands for the full disk: every write beyond it fails."""
    log = tmp_path / "compiled"
    script = compiler(f'case "$*" in *" -c "*) echo "$*" >> {log};; esac')
    limits = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    processes = [
        start(tree, cache, prepare=limits, CXX=str(script), TMPDIR=str(temporary)) for _ in range(4)
    ]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode != 0
        last = errors.splitlines()[-1]
        assert "BuildError: " in last and "8 MB" in last and "CUSTOM_OP_CACHE" in last
        for folder in (cache, temporary / f"custom_op-{os.getuid()}"):
            assert f"cannot use the cache {folder}: File too large" in last
    assert not log.exists()


def test_full_disk_of_the_cache_is_logged_and_the_next_folder_is_used(
    tree: Path, cache: Path, temporary: Path
) -> None:
    """A real file system without space for the build."""
    cache.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", cache])
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root with CAP_SYS_ADMIN")
    try:
        output = run(tree, cache, TMPDIR=str(temporary))
        assert built(output).is_relative_to(temporary)
        assert f"cannot use the cache {cache}: No space left on device" in output
    finally:
        subprocess.run(["umount", cache], check=True)
