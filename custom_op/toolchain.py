"""Makes the commands that compile the operator for this machine, torch and libjpeg-turbo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from custom_op.compiler import (
    BuildError,
    find_compiler,
    jpeg_flags,
    jpeg_macros,
    macro,
    preprocess,
)

# The first torch with the stable ABI that the sources use, and its encoding in torch's headers.
_OLDEST_TORCH = (2, 11)
_TARGET = _OLDEST_TORCH[0] << 56 | _OLDEST_TORCH[1] << 48
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
"""Source folders by compilation unit. All units take about the same time to compile. A folder stays
in one unit, because its functions are inlined into each other."""


@dataclass(frozen=True)
class Toolchain:
    """The parts of a compile command."""

    compiler: str
    """Path of the compiler."""
    arguments: tuple[str, ...]
    """The words after the program in `CXX`: `g++` in `ccache g++`, or options."""
    flags: tuple[str, ...]
    """Compile flags that contain no paths."""
    macros: str
    """All macros that are defined after jpeglib.h, one definition per line.

    They contain the versions of the compiler, the C and C++ libraries and libjpeg-turbo, and the
    instructions of the CPU, but no paths: installations of the same versions share a build.
    """

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return (*self.flags, "-isystem", f"{_torch_folder()}/include", *jpeg_flags("-I"))

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Has no rpath: the process that loads the library has already loaded its torch."""
        folders = (f"-L{_torch_folder()}/lib", *jpeg_flags("-L"))
        return (*folders, "-ltorch_cpu", "-ljpeg", "-pthread")

    def versions(self) -> dict[str, str]:
        version = macro(self.macros, "__VERSION__").strip('"')
        return {
            "compiler": f"GCC {version}" if version[0].isdigit() else version,
            "libjpeg_turbo": macro(self.macros, "LIBJPEG_TURBO_VERSION"),
        }

    def compile_commands(self, sources: Path, folder: Path) -> list[list[str]]:
        """Writes a source file per unit to `folder`; returns the commands that compile them there.

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
    """Returns this machine's toolchain. Raises BuildError if torch is too old, or the compiler or
    the headers are missing."""
    _check_torch(torch.__version__)
    compiler, *arguments = find_compiler()
    for native in (("-march=native",), ("-mcpu=native",), ()):  # compilers know one of them or none
        done = preprocess([compiler, *arguments, *_FLAGS, *native])
        if done.returncode == 0:
            break
    return Toolchain(compiler, tuple(arguments), (*_FLAGS, *native), jpeg_macros(done))


def _check_torch(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise BuildError(f"torch {version} is too old for the operator; install {oldest} or newer")


def _torch_folder() -> Path:
    return Path(torch.__file__).parent
