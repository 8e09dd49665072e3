"""The build at job start: real compilers, real processes, real signals."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import custom_op
from custom_op.build import SOURCES
from custom_op.load import _load_library
from custom_op.toolchain import _check_torch, find_toolchain
from tests.custom_op.building.build_process import BUILD, built, run, start

FORK_AND_BUILD = """
import os
from custom_op.build import build
children = []
for _ in range(32):
    if not (child := os.fork()):
        os._exit(0 if build()[0].exists() else 1)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""


def wait_for(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.02)


@pytest.mark.parametrize("words", ["{env} {compiler}", "{compiler} -O2", "'{compiler}' -DX='a b'"])
def test_cxx_may_have_a_wrapper_or_options(
    words: str, tree: Path, cache: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    log = tmp_path / "compiled"
    script = compiler(f'echo "$*" >> {log}')
    named = words.format(compiler=script, env=shutil.which("env"))
    assert "custom_op.so" in run(tree, cache, CXX=named)
    options = shlex.split(named.partition(str(script))[2].removeprefix("'"))
    assert all(line.startswith(" ".join(options)) for line in log.read_text().splitlines())
    assert "-shared" in log.read_text()


def test_an_open_quote_in_cxx_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "'g++")
    with pytest.raises(custom_op.BuildError, match=r"CXX='g\+\+: no such program"):
        find_toolchain()


def test_32_processes_that_start_together_compile_once(
    tree: Path, cache: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    log = tmp_path / "compiled"
    # One line per compiled unit; both sources are of the same one.
    script = compiler(f'case "$*" in *" -c "*) echo "$*" >> {log};; esac')
    assert str([0] * 32) in run(tree, cache, FORK_AND_BUILD, CXX=str(script))
    assert len(log.read_text().splitlines()) == 1


def test_killed_build_is_repeated_by_the_next_process(
    tree: Path, cache: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    begun = tmp_path / "begun"
    hang = compiler(
        f'case "$*" in *" -c "*) [ -e {begun} ] || {{ touch {begun}; sleep 600; }};; esac'
    )
    first = start(tree, cache, CXX=str(hang))
    wait_for(begun.exists)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert not list(cache.glob("*/build.json"))
    assert "waiting for another process" not in run(tree, cache, CXX=str(hang))
    assert len(list(cache.glob("*/build.json"))) == 1
    assert not list(cache.glob("*.tmp*"))


def test_compilation_is_one_line_in_a_program_without_logging(tree: Path, cache: Path) -> None:
    compiling, _ = sorted(run(tree, cache).splitlines())[::-1]
    assert compiling.startswith("custom_op: compiling the operator with ")
    assert "custom_op:" not in run(tree, cache)


def test_second_installation_of_the_same_versions_loads_the_build_of_the_first(
    tree: Path, cache: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    """Two environments with other paths to the compiler and torch; the first one is removed."""
    code = f"{BUILD}; import torch; torch.ops.load_library(build()[0]); print(torch.__file__)"

    def run(packages: Path, **variables: str) -> str:
        own = {"CUSTOM_OP_CACHE": str(cache), "PYTHONPATH": str(packages)}
        command, environment = [sys.executable, "-c", code], {**os.environ, **own, **variables}
        return subprocess.check_output(command, cwd=tree, env=environment, text=True)

    first, second = tmp_path / "first", tmp_path / "second"
    first.symlink_to(sysconfig.get_path("purelib"))
    output = run(first)
    assert f"{first}/torch" in output
    first.rename(second)
    script = compiler('case "$*" in *" -c "*) exit 1;; esac')
    again = run(second, CXX=str(script))
    assert built(again) == built(output)
    assert f"{second}/torch" in again


def test_another_cpu_or_version_has_another_build(
    tree: Path, cache: Path, compiler: Callable[[str], Path]
) -> None:
    """A macro stands for those of the other instructions, compiler or library."""
    other = compiler('set -- "$@" -D__OTHER__')
    code = "from custom_op.build import *; print(build_key(find_toolchain()))"
    assert run(tree, cache, code, CXX=str(other)) != run(tree, cache, code)


def test_waiting_for_another_build_is_logged(
    tree: Path, cache: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    begun, resume = tmp_path / "begun", tmp_path / "resume"
    slow = compiler(
        f'case "$*" in *" -c "*) touch {begun}; while [ ! -e {resume} ]; do sleep 0.05; done;; esac'
    )
    first = start(tree, cache, CXX=str(slow))
    wait_for(begun.exists)
    second = start(tree, cache, CXX=str(slow))
    assert second.errors is not None
    log = second.errors
    wait_for(lambda: "waiting for another process to build" in log.read_text())
    resume.touch()
    for process in (first, second):
        process.communicate()
        assert process.returncode == 0


def test_library_in_a_read_only_cache_is_loaded_without_a_write(tree: Path, cache: Path) -> None:
    library = built(run(tree, cache))
    for path in [*cache.rglob("*"), cache]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(cache.rglob("*"))
    try:
        assert built(run(tree, cache)) == library
        assert sorted(cache.rglob("*")) == before
    finally:
        for path in [cache, *cache.rglob("*")]:
            path.chmod(0o755)


def test_read_only_source_tree_builds(tree: Path, cache: Path) -> None:
    for path in [*tree.rglob("*"), tree]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(tree.rglob("*"))
    try:
        run(tree, cache, PYTHONDONTWRITEBYTECODE="1")
        assert sorted(tree.rglob("*")) == before
    finally:
        for path in [tree, *tree.rglob("*")]:
            path.chmod(0o755)


def test_changed_source_is_built_again(tree: Path, cache: Path) -> None:
    first = built(run(tree, cache))
    source = tree / "custom_op" / "csrc" / "jpeg" / "restarts.cpp"
    source.write_text(source.read_text() + "// changed\n")
    assert built(run(tree, cache)) != first
    assert len(list(cache.glob("*/build.json"))) == 2


@pytest.mark.parametrize(
    ("path", "missing"), [("", "no C++ compiler"), ("gone/c++", "CXX=gone/c++")]
)
def test_missing_compiler_names_the_packages(
    tree: Path, cache: Path, path: str, missing: str
) -> None:
    environment = {"CXX": path} if path else {"CXX": "", "PATH": "/nowhere"}
    process = start(tree, cache, **environment)
    _, errors = process.communicate()
    assert process.returncode != 0
    assert missing in errors
    for command in (
        "apt-get install g++ libjpeg-dev",
        "dnf install gcc-c++ libjpeg-turbo-devel",
        "brew install jpeg-turbo",
    ):
        assert command in errors


def test_missing_header_shows_the_compiler_output_and_the_fix(
    tree: Path, cache: Path, compiler: Callable[[str], Path]
) -> None:
    # Like a machine without the package: the preprocessor does not find the file.
    script = compiler('case "$*" in *"-E -dM"*) set -- -nostdinc "$@";; esac')
    process = start(tree, cache, CXX=str(script))
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "No such file" in errors or "no include path" in errors
    assert "apt-get install" in errors


def test_failed_compilation_shows_the_last_lines_of_the_compiler(tree: Path, cache: Path) -> None:
    (tree / "custom_op" / "csrc" / "jpeg" / "restarts.cpp").write_text(
        "#error deliberate failure\n"
    )
    process = start(tree, cache)
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "deliberate failure" in errors and "restarts.cpp" in errors
    assert not list(cache.glob("*.tmp*"))


def test_header_and_library_of_different_versions_are_no_damaged_images(
    cache: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    (tree := tmp_path / "whole").mkdir()
    (tree / "custom_op").symlink_to(SOURCES.parent)
    other = tmp_path / "include" / "jpeglib.h"
    other.parent.mkdir()
    other.write_text(
        "#include_next <jpeglib.h>\n#undef JPEG_LIB_VERSION\n#define JPEG_LIB_VERSION 61\n"
    )
    quick = str(compiler('case "$*" in *" -c "*) set -- "$@" -O0;; esac'))
    load = "import custom_op; custom_op.load()"
    process = start(tree, cache, load, CXX=quick, CPATH=str(other.parent))
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "jpeglib.h and libjpeg.so are of different versions" in errors
    assert "caller expects 61" in errors and str(cache) in errors


def test_unwritable_cache_is_replaced_by_a_temporary_folder(tree: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    (tmp_path / "temporary").mkdir()
    output = run(tree, blocked / "cache", TMPDIR=str(tmp_path / "temporary"))
    assert "cannot use the cache" in output
    assert list((tmp_path / "temporary").glob("custom_op-*/*/build.json"))


def test_cache_without_file_locks_is_replaced_by_a_temporary_folder(
    tree: Path, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "temporary").mkdir()
    output = run(
        tree, cache, prepare=partial(refuse_locks, cache), TMPDIR=str(tmp_path / "temporary")
    )
    assert f"cannot use the cache {cache}: {os.strerror(errno.ENOLCK)}" in output
    assert list((tmp_path / "temporary").glob("custom_op-*/*/build.json"))


def refuse_locks(folder: Path) -> None:
    """Locks in `folder` then fail as on NFS without a lock service."""
    flock = fcntl.flock

    def refusing(file: Any, operation: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(folder):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(file, operation)

    fcntl.flock = refusing


def test_build_info_has_the_build_record_and_the_seconds() -> None:
    info = custom_op.build_info()
    record = json.loads(Path(info["library"]).with_name("build.json").read_text())
    assert info["build_seconds"] == record["build_seconds"] > 0
    assert info["load_seconds"] > 0
    assert info["libjpeg_turbo"][0].isdigit()


def test_sources_compile_without_a_warning(tmp_path: Path) -> None:
    for command in find_toolchain().compile_commands(SOURCES, tmp_path):
        strict = [*command, "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
        done = subprocess.run(strict, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("needs", ["library", "symbol"])
def test_library_that_misses_another_names_it(needs: str, tmp_path: Path) -> None:
    """As after a build with a libjpeg outside the system's folders."""
    compiler = find_toolchain().compiler
    other, library = tmp_path / "libgone.so.7", tmp_path / "custom_op.so"
    make = [compiler, "-shared", "-fPIC", "-x", "c++", "-"]
    text = "extern void gone(); void (*kept)() = gone;"
    subprocess.run([*make, "-o", str(other)], input="void gone() {}", text=True, check=True)
    linked = [] if needs == "symbol" else ["-x", "none", str(other)]
    subprocess.run([*make, *linked, "-o", str(library)], input=text, text=True, check=True)
    other.unlink()
    says = "undefined symbol: _Z4gonev.*remove the folder$"
    if needs == "library":
        says = r"It needs \S*libgone\.so\.7: install that library, or .* LD_LIBRARY_PATH$"
    with pytest.raises(custom_op.BuildError, match=says):
        _load_library(library)


def test_library_that_cannot_be_loaded_is_named_with_the_fix(tmp_path: Path) -> None:
    library = tmp_path / "custom_op.so"
    library.write_bytes(b"no library")
    with pytest.raises(custom_op.BuildError, match=rf"{tmp_path}.*noexec.*CUSTOM_OP_CACHE"):
        _load_library(library)


@pytest.mark.parametrize(("version", "refused"), [("2.10.0+cpu", True), ("2.11.0a0+git1", False)])
def test_torch_without_the_stable_abi_is_refused(version: str, refused: bool) -> None:
    expected = pytest.raises(custom_op.BuildError, match=rf"torch {re.escape(version)} is too old")
    with expected if refused else contextlib.nullcontext():
        _check_torch(version)


def test_every_source_belongs_to_one_unit(tmp_path: Path) -> None:
    find_toolchain().compile_commands(SOURCES, tmp_path)
    included = [
        line.split('"')[1]
        for unit in tmp_path.glob("*.cpp")
        for line in unit.read_text().splitlines()
    ]
    files = [file.relative_to(SOURCES).as_posix() for file in SOURCES.rglob("*.cpp")]
    assert sorted(included) == sorted(files)
