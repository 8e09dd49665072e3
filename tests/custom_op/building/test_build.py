"""The build at job start: real compilers, real processes, real signals."""

import contextlib
import json
import logging
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import custom_op
from custom_op.build import build, build_key
from custom_op.load import _load_library
from custom_op.toolchain import _check_torch, find_toolchain

FORK = multiprocessing.get_context("fork")
ROOT = Path(__file__).resolve().parents[3]
Compiler = Callable[[str], Path]


def wait_for(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.parametrize("words", ["{env} {compiler}", "{compiler} -O2", "'{compiler}' -DX='a b'"])
@pytest.mark.usefixtures("sources", "cache")
def test_cxx_may_have_a_wrapper_or_options(
    words: str, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "compiled"
    script = compiler(f'echo "$*" >> {log}')
    named = words.format(compiler=script, env=shutil.which("env"))
    monkeypatch.setenv("CXX", named)
    assert build()[0].exists()
    options = shlex.split(named.partition(str(script))[2].removeprefix("'"))
    assert all(line.startswith(" ".join(options)) for line in log.read_text().splitlines())
    assert "-shared" in log.read_text()


@pytest.mark.usefixtures("sources", "cache")
def test_32_processes_that_start_together_compile_once(tmp_path: Path, compiler: Compiler) -> None:
    log = tmp_path / "compiled"
    compiler(f'case "$*" in *" -c "*) echo "$*" >> {log}; sleep 1;; esac')
    with FORK.Pool(32) as pool:
        libraries = pool.starmap(build, [()] * 32, chunksize=1)
    assert len({library for library, _ in libraries}) == 1 and libraries[0][0].exists()
    assert len(log.read_text().splitlines()) == 1


def build_in_a_session() -> None:
    os.setsid()
    build()


@pytest.mark.usefixtures("sources")
def test_killed_build_is_repeated_by_the_next_process(
    cache: Path, tmp_path: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    begun = tmp_path / "begun"
    compiler(f'case "$*" in *" -c "*) [ -e {begun} ] || {{ touch {begun}; sleep 600; }};; esac')
    first = FORK.Process(target=build_in_a_session)
    first.start()
    wait_for(begun.exists)
    assert first.pid is not None
    os.killpg(first.pid, signal.SIGKILL)
    first.join()
    assert not list(cache.glob("*/build.json"))
    assert build()[0].exists()
    assert "waiting for another process" not in caplog.text
    assert len(list(cache.glob("*/build.json"))) == 1
    assert not list(cache.glob("*.tmp*"))


@pytest.mark.usefixtures("sources", "cache")
def test_a_program_without_logging_shows_one_line_for_a_compilation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a configuration, Python prints warnings."""
    with caplog.at_level(logging.WARNING):
        build(), build()
    (line,) = caplog.messages
    assert line.startswith("custom_op: compiling the operator with ")


@pytest.mark.usefixtures("sources")
def test_waiting_for_another_build_is_logged(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(cache / f"{build_key(find_toolchain())}.lock"):
            waiting = pool.submit(build)
            wait_for(lambda: "waiting for another process to build" in caplog.text)
        assert waiting.result()[0].exists()


def test_builds_differ_by_what_they_are_made_of_and_not_by_where_that_lies(
    sources: Path, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = build_key(find_toolchain())
    with monkeypatch.context() as elsewhere:
        compiler("")
        elsewhere.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
        assert build_key(find_toolchain()) == key
    # A macro stands for those of other instructions, another compiler or another library.
    compiler('set -- "$@" -D__OTHER__')
    assert build_key(find_toolchain()) != key
    monkeypatch.delenv("CXX")
    (sources / "jpeg" / "answer.cpp").write_text("int answer() { return 43; }\n")
    assert build_key(find_toolchain()) != key


def test_a_build_writes_neither_to_its_sources_nor_to_a_cache_that_has_it(
    sources: Path, cache: Path
) -> None:
    before = sorted((sources, *sources.rglob("*")))
    library, _ = build()
    complete = sorted(cache.rglob("*"))
    read_only = [*before, cache, *complete]
    for path in read_only:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert build()[0] == library
        assert sorted((sources, *sources.rglob("*"))) == before
        assert sorted(cache.rglob("*")) == complete
    finally:
        for path in read_only:
            path.chmod(0o755)


@pytest.mark.parametrize(
    ("cxx", "missing"),
    [
        ("", "no C++ compiler"),
        ("gone/c++", "CXX=gone/c++: no such program"),
        ("'g++", "CXX='g++: no such program"),  # nothing closes the quote
    ],
)
def test_missing_compiler_names_the_packages(
    cxx: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(custom_op.BuildError, match=re.escape(missing)) as raised:
        find_toolchain()
    for command in (
        "apt-get install g++ libjpeg-dev",
        "dnf install gcc-c++ libjpeg-turbo-devel",
        "brew install jpeg-turbo",
    ):
        assert command in str(raised.value)


def test_missing_header_shows_the_compiler_output_and_the_fix(compiler: Compiler) -> None:
    # Like a machine without the package: the preprocessor does not find the file.
    compiler('case "$*" in *"-E -dM"*) set -- -nostdinc "$@";; esac')
    expected = r"(No such file|no include path)[\s\S]*apt-get install"
    with pytest.raises(custom_op.BuildError, match=expected):
        find_toolchain()


def test_failed_compilation_shows_the_last_lines_of_the_compiler(
    sources: Path, cache: Path
) -> None:
    (sources / "jpeg" / "answer.cpp").write_text("#error deliberate failure\n")
    with pytest.raises(custom_op.BuildError, match=r"answer\.cpp.*deliberate failure"):
        build()
    assert not list(cache.glob("*.tmp*"))


OTHER_VERSION = """
#include <dlfcn.h>
#include <stddef.h>

extern "C" void jpeg_CreateDecompress(void* cinfo, int, size_t size) {
  void* real = dlsym(RTLD_NEXT, "jpeg_CreateDecompress");
  reinterpret_cast<void (*)(void*, int, size_t)>(real)(cinfo, 61, size);
}
"""
"""Before libjpeg, which then hears the version of another header."""


def test_header_and_library_of_different_versions_are_no_damaged_images(tmp_path: Path) -> None:
    compile_library(tmp_path / "other.so", OTHER_VERSION, "-Wl,--no-as-needed", "-ljpeg")
    command = [sys.executable, "-c", "import custom_op; custom_op.load()"]
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "other.so")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "jpeglib.h and libjpeg.so are of different versions" in done.stderr
    assert "caller expects 61" in done.stderr
    assert str(Path(custom_op.build_info()["library"]).parent) in done.stderr


def test_build_info_has_the_build_record_and_the_seconds() -> None:
    info = custom_op.build_info()
    record = json.loads(Path(info["library"]).with_name("build.json").read_text())
    assert info["build_seconds"] == record["build_seconds"] > 0
    assert info["load_seconds"] > 0
    assert info["libjpeg_turbo"][0].isdigit()


USES_ANOTHER = "extern void gone(); void (*kept)() = gone;"


def compile_library(library: Path, source: str, *others: str | Path) -> None:
    command = [find_toolchain().compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o"]
    subprocess.run(
        [*command, str(library), "-x", "none", *map(str, others)],
        input=source,
        text=True,
        check=True,
    )


def linked_with_a_lost_library(library: Path) -> None:
    """As after a build with a libjpeg outside the system's folders."""
    other = library.with_name("libgone.so.7")
    compile_library(other, "void gone() {}")
    compile_library(library, USES_ANOTHER, other)
    other.unlink()


def without_a_symbol(library: Path) -> None:
    compile_library(library, USES_ANOTHER)


def damaged(library: Path) -> None:
    library.write_bytes(b"no library")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            linked_with_a_lost_library,
            r"It needs \S*libgone\.so\.7: install that library, or .* LD_LIBRARY_PATH$",
        ),
        (
            without_a_symbol,
            "undefined symbol: _Z4gonev.*built with another version.*remove the folder$",
        ),
        (damaged, "noexec.*CUSTOM_OP_CACHE.*damaged, remove the folder$"),
    ],
)
def test_library_that_cannot_be_loaded_is_named_with_the_fix(
    make: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    make(library := tmp_path / "custom_op.so")
    with pytest.raises(custom_op.BuildError, match=f"{re.escape(str(tmp_path))}.*{says}"):
        _load_library(library)


@pytest.mark.parametrize(("version", "refused"), [("2.10.0+cpu", True), ("2.11.0a0+git1", False)])
def test_torch_without_the_stable_abi_is_refused(version: str, refused: bool) -> None:
    expected = pytest.raises(custom_op.BuildError, match=rf"torch {re.escape(version)} is too old")
    with expected if refused else contextlib.nullcontext():
        _check_torch(version)
