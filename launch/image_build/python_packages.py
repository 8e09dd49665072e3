"""Install the job's Python packages into a base image that brings torch and much else.

``python python_packages.py job.in job.txt`` runs inside the image build. What the base has and
``job.in`` accepts stays at the base's version, torch and torchvision before all; the rest comes
at the versions that ``job.txt`` pins. A build that would leave a package of the base with a
broken dependency fails. What only TensorBoard's viewer needs is left out.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path

# The base may lack `packaging` itself; pip, which installs for us anyway, carries it.
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

BASE_BRINGS = ("torch", "torchvision")
# The job writes TensorBoard's events and never shows them: its viewer's parts, 40 MB, stay out.
VIEWER_ONLY = ("grpcio", "tensorboard-data-server")


def parse(text: str) -> list[Requirement]:
    """The requirements of a file that hold for this interpreter, without comments and options."""
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    parsed = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    return [r for r in parsed if r.marker is None or r.marker.evaluate()]


def installed() -> dict[str, str]:
    """Canonical name -> version of everything this interpreter can import."""
    return {canonicalize_name(d.metadata["Name"]): d.version for d in distributions()}


def constraints(
    wanted: Iterable[Requirement], locked: Iterable[Requirement], present: Mapping[str, str]
) -> list[str]:
    """One line per package: the base's own version if it will do, else the pinned one."""
    accepted = {canonicalize_name(r.name): r.specifier for r in wanted}
    lines = [f"{name}=={present[name]}" for name in BASE_BRINGS if name in present]
    for pin in locked:
        name = canonicalize_name(pin.name)
        version = present.get(name)
        keeps = version is not None and (
            name not in accepted or accepted[name].contains(version, prereleases=True)
        )
        lines.append(f"{name}=={version}" if keeps else f"{name}{pin.specifier}")
    return lines


def complaints() -> set[str]:
    """What ``pip check`` finds wrong; a base may come with complaints of its own."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    return set(done.stdout.splitlines()) if done.returncode else set()


def install(wanted: Path, lines: Iterable[str]) -> None:
    """Run pip under the constraints, leaving no cache behind; raises CalledProcessError."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        options = ["--no-cache-dir", "--use-pep517", "--disable-pip-version-check"]
        options += ["--root-user-action=ignore"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "-c", file.name, "-r", str(wanted)],
            check=True,
        )


def remove(names: Iterable[str]) -> None:
    """Uninstall packages; raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "uninstall", "--yes", "--root-user-action=ignore"]
    subprocess.run([*command, *names], check=True)


def main(wanted: Path, locked: Path) -> None:
    """Install, then say what changed; exits with one line when the base does not fit."""
    before = installed()
    missing = [name for name in BASE_BRINGS if name not in before]
    if missing:
        sys.exit(
            f"the base image lacks {' and '.join(missing)}: set BASE_IMAGE to one that has them"
        )
    grumbles = complaints()
    try:
        install(wanted, constraints(parse(wanted.read_text()), parse(locked.read_text()), before))
    except subprocess.CalledProcessError:
        sys.exit(
            "the job's packages do not fit into the base image, for the reason that pip gives "
            "above: choose another base, or other ranges in requirements/job.in"
        )
    new = complaints() - grumbles
    if new:
        sys.exit("installing the job's packages broke others in the base: " + "; ".join(new))
    unneeded = [name for name in VIEWER_ONLY if name not in before]
    if unneeded:
        remove(unneeded)
    for name, version in sorted(installed().items()):
        if before.get(name) != version:
            sys.stdout.write(f"{name} {before.get(name, 'added')} -> {version}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
