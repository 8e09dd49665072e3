"""Finds the C++ compiler and the headers of libjpeg-turbo; errors name the packages to install."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

_ADVICE = (
    "Install them with one of:\n"
    "  Debian:        apt-get install g++ libjpeg62-turbo-dev\n"
    "  Ubuntu:        apt-get install g++ libjpeg-turbo8-dev\n"
    "  Amazon Linux:  dnf install gcc-c++ libjpeg-turbo-devel\n"
    "  macOS:         xcode-select --install && brew install jpeg-turbo"
)
# The first torch with the stable ABI that the sources use, and its encoding in torch's headers.
_OLDEST_TORCH = (2, 11)
_TARGET = _OLDEST_TORCH[0] << 56 | _OLDEST_TORCH[1] << 48
_NO_COMPILER = "no C++ compiler: neither $CXX nor c++, g++ or clang++ is on the PATH. "
_NO_HEADER = "cannot use jpeglib.h of libjpeg-turbo: "
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    f"-DTORCH_TARGET_VERSION={_TARGET:#x}",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # the same floats on processors with and without FMA
)
_UNITS = {
    "augment": ("augment",),
    "binding": ("binding",),
    "decode": ("entropy", "jpeg", "pixels"),
    "rows": ("csrc", "resize", "samples"),
}
"""The folders of each unit. Units take about the same time. A folder is not divided: its functions
are inlined into each other."""


class BuildError(RuntimeError):
    """The operator cannot be built; the message says what is missing and how to install it."""


@dataclass(frozen=True)
class Toolchain:
    """The parts of a compile command."""

    compiler: str
    """The path."""
    arguments: tuple[str, ...]
    """What `CXX` has after the program: `g++` of `ccache g++`, or options."""
    flags: tuple[str, ...]
    """Without paths."""
    macros: str
    """All macros that are defined after jpeglib.h, one definition per line.

    They contain the versions of the compiler, the C and C++ libraries and libjpeg-turbo, and the
    instructions of the CPU, but no paths: installations of the same versions share a build.
    """

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return (*self.flags, "-isystem", f"{_torch_folder()}/include", *_jpeg_flags("-I"))

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Without an rpath: the process that loads the library has already loaded its torch."""
        folders = (f"-L{_torch_folder()}/lib", *_jpeg_flags("-L"))
        return (*folders, "-ltorch_cpu", "-ljpeg", "-pthread")

    def versions(self) -> dict[str, str]:
        version = self._macro("__VERSION__").strip('"')
        return {
            "compiler": f"GCC {version}" if version[0].isdigit() else version,
            "libjpeg_turbo": self._macro("LIBJPEG_TURBO_VERSION"),
        }

    def _macro(self, name: str) -> str:
        found = re.search(rf"^#define {name} (.+)$", self.macros, re.MULTILINE)
        return found.group(1) if found else ""

    def compile_commands(self, sources: Path, folder: Path) -> list[list[str]]:
        """Writes the sources of the units to `folder`; returns what compiles each there.

        Compiling file by file takes twice as long, because the compiler reads the same headers each
        time.
        """
        files = sorted(sources.rglob("*.cpp"))
        commands = []
        for unit, folders in _UNITS.items():
            source = folder / f"{unit}.cpp"
            included = [file.relative_to(sources) for file in files if file.parent.name in folders]
            if not included:
                continue
            source.write_text("".join(f'#include "{file}"\n' for file in included))
            # The bindings are mostly templates of torch and run once per batch.
            options = ["-O1"] if unit == "binding" else []
            paths = [f"-I{sources}", "-c", str(source), "-o", str(source.with_suffix(".o"))]
            commands.append([self.compiler, *self.arguments, *self.compile_flags, *options, *paths])
        return commands

    def link_command(self, objects: list[Path], library: Path) -> list[str]:
        output = ["-shared", *map(str, objects), "-o", str(library)]
        return [self.compiler, *self.arguments, *output, *self.link_flags]


def find_toolchain() -> Toolchain:
    """Raises BuildError if torch is too old, or the compiler or the headers are missing."""
    _check_torch(torch.__version__)
    compiler, *arguments = _find_compiler()
    for native in (("-march=native",), ("-mcpu=native",), ()):  # compilers know one of them or none
        done = _preprocess([compiler, *arguments, *_FLAGS, *native, *_jpeg_flags("-I")])
        if done.returncode == 0:
            break
    else:
        lines = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise BuildError(f"{_NO_HEADER}{lines}\n{_ADVICE}")
    macros = "\n".join(sorted(done.stdout.splitlines()))
    toolchain = Toolchain(compiler, tuple(arguments), (*_FLAGS, *native), macros)
    if not toolchain.versions()["libjpeg_turbo"]:
        raise BuildError(f"{_NO_HEADER}this one belongs to another libjpeg.\n{_ADVICE}")
    return toolchain


def _check_torch(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise BuildError(f"torch {version} is too old for the operator; install {oldest} or newer")


def _find_compiler() -> list[str]:
    """Returns the compiler's path, and its arguments in `CXX`, which a shell would split as
    here."""
    if named := os.environ.get("CXX"):
        with contextlib.suppress(ValueError):  # a quote that nothing closes
            for program, *arguments in ([named], shlex.split(named)):
                if found := shutil.which(program):
                    return [found, *arguments]
        raise BuildError(f"CXX={named}: no such program. {_ADVICE}")
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise BuildError(_NO_COMPILER + _ADVICE)


def _preprocess(compiler: list[str]) -> subprocess.CompletedProcess[str]:
    """Prints the macros that are defined after jpeglib.h."""
    return subprocess.run(
        [*compiler, "-E", "-dM", "-x", "c++", "-"],
        input="#include <cstdio>\n#include <jpeglib.h>\n",
        capture_output=True,
        text=True,
        errors="replace",
    )


def _torch_folder() -> Path:
    return Path(torch.__file__).parent


def _jpeg_flags(option: str) -> list[str]:
    """Homebrew keeps libjpeg-turbo outside the compiler's search path."""
    if sys.platform != "darwin":
        return []
    roots = (Path("/opt/homebrew/opt/jpeg-turbo"), Path("/usr/local/opt/jpeg-turbo"))
    folders = (root / {"-I": "include", "-L": "lib"}[option] for root in roots)
    return [f"{option}{folder}" for folder in folders if folder.is_dir()]
