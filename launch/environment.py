"""Create the virtual environment. README.md names the system packages that it needs.

``python3 -m launch.environment EXTRA ...``, with one or more keys of ``REQUIREMENTS``. ``launch``,
``launch-v2`` and ``launch-v3`` use separate environments, as the two SageMaker SDKs exclude each
other. An extra that is up to date is left alone; a setup that was killed resumes. With ``job`` come
the packages in ``project/requirements.in``, if it names any. This file uses the standard library
only, because it runs before anything is installed.
"""

import fcntl
import hashlib
import os
import platform
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from launch import say

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = {
    "job": ("torch.txt", "job.txt"),
    "dev": ("dev.txt",),
    "bench": ("bench.txt", "peers.txt", "mosaicml.txt"),
    "dali": ("dali.txt",),
    "timm": ("timm.txt",),
    "mlflow": ("mlflow.txt",),
    "wandb": ("wandb.txt",),
    "parquet": ("parquet.txt",),
    "launch": ("launch.txt",),
    "launch-v2": ("launch-v2.txt",),
    "launch-v3": ("launch-v3.txt",),
}
# The packages of the user's code, which must accept the job's pins.
OWN_REQUIREMENTS = "project/requirements.in"
ENVIRONMENTS = {name: f".venv-{name}" for name in ("launch", "launch-v2", "launch-v3")}
SUPPORTED = ((3, 11), (3, 14))


class SetupError(Exception):
    """Setup cannot continue; the message says what the user must do."""


def fingerprint(files: Sequence[str]) -> str:
    """Return a hash of these requirements files and of the interpreter."""
    digest = hashlib.sha256(f"{sys.version}{platform.machine()}".encode())
    for name in files:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def pins(extra: str) -> list[str]:
    """Return the files with the extra's pins, relative to the root."""
    return [f"requirements/{name}" for name in REQUIREMENTS[extra]]


def ensure_environment(venv: Path, extra: str) -> None:
    """Create ``venv`` if needed and install ``extra`` into it unless its pins are already there.

    With ``job`` come the packages of the user's code, if it names any.
    """
    ensure_installed(venv, extra, pins(extra))
    own = ROOT / OWN_REQUIREMENTS
    if extra == "job" and own.is_file():
        if any(line.split("#")[0].strip() for line in own.read_text().splitlines()):
            ensure_installed(venv, "project", [OWN_REQUIREMENTS], limits=pins("job"))


def ensure_installed(
    venv: Path, name: str, files: Sequence[str], limits: Sequence[str] = ()
) -> None:
    """Install ``files`` unless they are already there; ``limits`` are pip's constraints."""
    stamp = venv / f".{name}-installed"
    wanted = fingerprint([*files, *limits])
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if name == "job":
        require_compiler()
    if not (venv / "bin" / "pip").exists():
        say(f"setup: creating {venv.name} with Python {platform.python_version()}")
        if subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)]).returncode:
            raise SetupError(f"Python's venv module could not create {venv.name}, see above")
        # Python brings one that is older than itself: before 24.1, choosing versions takes three
        # times as long.
        subprocess.run([*pip(venv), "--quiet", "--upgrade", "pip"], capture_output=True)
    names = " and ".join(files)
    started = time.monotonic()
    if name == "job" and not has_gpu():
        files = cpu_pins(venv, files)
    size = "; torch and its CUDA libraries take about 6 GB" if files == pins("job") else ""
    say(f"setup: installing {names} into {venv.name}{size}")
    if not pip_installs(venv, files, limits):
        fits = f", that it accepts the versions in {' and '.join(limits)}" if limits else ""
        raise SetupError(
            f"pip could not install {names}, see above; check the network and the free disk space"
            f"{fits}, then run make again"
        )
    stamp.write_text(wanted)
    say(f"setup: installed in {time.monotonic() - started:.0f} s")


def require_compiler() -> None:
    """Raise SetupError if the operator could not be compiled, before minutes of installing."""
    if "pipeline=pillow" in os.environ.get("ARGS", ""):  # needs no operator
        return
    # Read as a file: the package imports torch.
    compiler = runpy.run_path(str(ROOT / "custom_op" / "compiler.py"))
    try:
        compiler["jpeg_macros"](compiler["preprocess"](compiler["find_compiler"]()))
    except compiler["BuildError"] as error:
        raise SetupError(f"{error}\nThen run make again.") from None


def has_gpu() -> bool:
    """Return whether torch may need CUDA; other systems than Linux have builds of their own."""
    return sys.platform != "linux" or Path("/dev/nvidiactl").exists()


def cpu_pins(venv: Path, files: Sequence[str]) -> Sequence[str]:
    """Return ``files`` without CUDA if the package index has this torch for CPUs only.

    https://peps.python.org/pep-0440/#local-version-identifiers
    """
    lines = (ROOT / files[0]).read_text().splitlines()
    torch = [f"{line}+cpu" for line in lines if line.startswith(("torch==", "torchvision=="))]
    if subprocess.run([*pip(venv), "--no-deps", *torch], capture_output=True).returncode:
        say(
            "setup: no GPU is here, and this package index has torch with CUDA only; PyTorch's "
            "index of builds for CPUs (https://pytorch.org/get-started/locally) as "
            "PIP_EXTRA_INDEX_URL saves 4 GB"
        )
        return files
    say("setup: no GPU is here: torch is the build for CPUs")
    others = [
        line
        for line in lines
        if not line.startswith(("torch==", "torchvision==", "cuda-", "nvidia-", "triton=="))
    ]
    file = venv / "torch-cpu.txt"
    file.write_text("\n".join(others))
    return [str(file), *files[1:]]


def pip(venv: Path) -> list[str]:
    """Return the beginning of a command, which leaves compiling to the first import: a job imports
    a small part of what is installed."""
    program = str(venv / "bin" / "pip")
    return [program, "--disable-pip-version-check", "install", "--no-compile", "--use-pep517"]


def pip_installs(venv: Path, files: Sequence[str], limits: Sequence[str]) -> bool:
    """Install these requirements files within ``limits``; returns whether pip succeeded."""
    command = pip(venv) if limits else [*pip(venv), "--no-deps"]  # the pins are complete
    for option, names in {"-c": limits, "-r": files}.items():
        command += [word for name in names for word in (option, str(ROOT / name))]
    return not subprocess.run(command).returncode


@contextmanager
def one_setup() -> Iterator[None]:
    """Wait for another setup in this folder.

    Wait for nobody where no lock can be had: in a read-only folder or another user's, which may
    have all that is needed, and on a file system without locks.
    """
    try:
        lock = (ROOT / ".setup.lock").open("a")
    except OSError:
        yield
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("setup: waiting for another setup in this folder")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


def main(extras: Sequence[str]) -> int:
    """Install ``extras``; returns the exit code."""
    low, high = SUPPORTED
    try:
        if not low <= sys.version_info[:2] <= high:
            raise SetupError(
                f"Python {platform.python_version()} is not supported; choose one from "
                f"{low[0]}.{low[1]} to {high[0]}.{high[1]}, as in: make PYTHON=python3.13 ..."
            )
        unknown = [extra for extra in extras if extra not in REQUIREMENTS]
        if unknown or not extras:
            # Not above: a Python that is too old may not read it.
            from entry_point.config.retired import retired

            message = retired(*(f"EXTRAS={extra}" for extra in unknown))
            message = message or f"must be one or more of {', '.join(REQUIREMENTS)}"
            raise SetupError(f"extras={','.join(unknown)}: {message}")
        with one_setup():
            for extra in extras:
                ensure_environment(ROOT / ENVIRONMENTS.get(extra, ".venv"), extra)
    except (SetupError, OSError) as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
