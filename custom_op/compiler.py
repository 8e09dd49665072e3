"""Finds a C++ compiler that can use libjpeg-turbo; errors name the packages to install.

Needs only the standard library, because setup checks the compiler before it installs torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ADVICE = (
    "Install them with one of:\n"
    "  Debian, Ubuntu:  apt-get install g++ libjpeg-dev\n"
    "  Amazon Linux:    dnf install gcc-c++ libjpeg-turbo-devel\n"
    "  macOS:           xcode-select --install && brew install jpeg-turbo"
)
_NO_COMPILER = "no C++ compiler: neither $CXX nor c++, g++ or clang++ is on the PATH. "
_NO_HEADER = "cannot use jpeglib.h of libjpeg-turbo: "


class BuildError(RuntimeError):
    """The operator cannot be built; the message says what is missing and how to install it."""


def find_compiler() -> list[str]:
    """Returns the compiler's path and the arguments after it in `CXX`, split as by a shell.

    Raises BuildError.
    """
    if named := os.environ.get("CXX"):
        with contextlib.suppress(ValueError):  # an unclosed quote
            for program, *arguments in ([named], shlex.split(named)):
                if found := shutil.which(program):
                    return [found, *arguments]
        raise BuildError(f"CXX={named}: no such program. {_ADVICE}")
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise BuildError(_NO_COMPILER + _ADVICE)


def preprocess(compiler: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs the preprocessor, which prints the macros that are defined after jpeglib.h."""
    return subprocess.run(
        [*compiler, *jpeg_flags("-I"), "-E", "-dM", "-x", "c++", "-"],
        input="#include <cstdio>\n#include <jpeglib.h>\n",
        capture_output=True,
        text=True,
        errors="replace",
    )


def jpeg_macros(preprocessed: subprocess.CompletedProcess[str]) -> str:
    """Returns the macros of `preprocess`, sorted. Raises BuildError unless libjpeg-turbo's."""
    if preprocessed.returncode:
        lines = "\n".join(preprocessed.stderr.strip().splitlines()[-3:])
        raise BuildError(f"{_NO_HEADER}{lines}\n{_ADVICE}")
    macros = "\n".join(sorted(preprocessed.stdout.splitlines()))
    if not macro(macros, "LIBJPEG_TURBO_VERSION"):
        raise BuildError(f"{_NO_HEADER}this one belongs to another libjpeg.\n{_ADVICE}")
    return macros


def macro(macros: str, name: str) -> str:
    """Returns the definition of a macro; "" if it has none or is not defined."""
    found = re.search(rf"^#define {name} (.+)$", macros, re.MULTILINE)
    return found.group(1) if found else ""


def jpeg_flags(option: str) -> list[str]:
    """Returns the option (-I or -L) with each of Homebrew's folders of libjpeg-turbo, which
    compilers do not search."""
    if sys.platform != "darwin":
        return []
    roots = (Path("/opt/homebrew/opt/jpeg-turbo"), Path("/usr/local/opt/jpeg-turbo"))
    folders = (root / {"-I": "include", "-L": "lib"}[option] for root in roots)
    return [f"{option}{folder}" for folder in folders if folder.is_dir()]
