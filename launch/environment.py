"""Create the virtual environment. README.md names the system packages that it needs.

``python3 -m launch.environment EXTRA ...``, with one or more keys of ``REQUIREMENTS``. ``launch``,
``launch-v2`` and ``launch-v3`` use separate environments, as the two SageMaker SDKs exclude each
other. An extra that is up to date is left alone; a setup that was killed resumes. With ``job`` come
the packages in ``project/requirements.in``, if it names any. This file uses the standard library
only, because it runs before anything is installed.
"""

import fcntl
import hashlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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


def say(text: str) -> None:
    """Print one line of progress, unbuffered even if stdout is a pipe."""
    sys.stdout.write(f"setup: {text}\n")
    sys.stdout.flush()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``, so that only one setup writes to an environment."""
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another setup in this folder")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


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
    if not (venv / "bin" / "pip").exists():
        say(f"creating {venv.name} with Python {platform.python_version()}")
        if subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)]).returncode:
            raise SetupError(f"Python's venv module could not create {venv.name}, see above")
    names = " and ".join(files)
    size = "; torch and its CUDA libraries take about 6 GB" if name == "job" else ""
    say(f"installing {names} into {venv.name}{size}")
    started = time.monotonic()
    if not pip_installs(venv, files, limits):
        fits = f", that it accepts the versions in {' and '.join(limits)}" if limits else ""
        raise SetupError(
            f"pip could not install {names}, see above; check the network and the free disk space"
            f"{fits}, then run make again"
        )
    stamp.write_text(wanted)
    say(f"installed in {time.monotonic() - started:.0f} s")


def pip_installs(venv: Path, files: Sequence[str], limits: Sequence[str]) -> bool:
    """Install these requirements files within ``limits``; returns whether pip succeeded."""
    # Every core compiles, which is faster than pip.
    pip = [str(venv / "bin" / "pip"), "--disable-pip-version-check", "install", "--no-compile"]
    pip.append("--use-pep517")
    if not limits:
        pip.append("--no-deps")  # the pins are complete
    if not sys.stdout.isatty():
        pip.append("--quiet")
    wanted = [a for name in files for a in ("-r", str(ROOT / name))]
    within = [a for name in limits for a in ("-c", str(ROOT / name))]
    if subprocess.run([*pip, *within, *wanted]).returncode:
        return False
    # Not all that packages bring compiles: some of it is templates.
    subprocess.run([sys.executable, "-m", "compileall", "-qq", "-j", "0", str(venv / "lib")])
    return True


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
        with locked(ROOT / ".setup.lock"):
            for extra in extras:
                ensure_environment(ROOT / ENVIRONMENTS.get(extra, ".venv"), extra)
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
