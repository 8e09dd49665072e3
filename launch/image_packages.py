"""Install the job's Python packages into a base image that already has torch and other packages.

``python image_packages.py FOLDER OWN job [dali]`` runs in the image build. A package of the base
keeps its version if ``FOLDER/job.in`` accepts it; torch and torchvision always do. Other packages
get the versions pinned in ``job.txt``. Further names (``dali``) work the same way. The file ``OWN``
lists the packages of the user's code, which must accept those versions.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

# The base may lack `packaging`; pip has a copy.
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
from pip._vendor.packaging.version import Version

BASE_BRINGS = ("torch", "torchvision")
# The first release with the stable ABI that the operator uses.
OLDEST_TORCH = "2.11"
# The job writes TensorBoard events; only their viewer needs these.
VIEWER_ONLY = ("grpcio", "tensorboard-data-server")


def read(*files: Path) -> list[Requirement]:
    """Returns the requirements in these files that apply to this interpreter."""
    lines = (
        line.split(" #")[0].strip() for file in files for line in file.read_text().splitlines()
    )
    found = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    return [each for each in found if each.marker is None or each.marker.evaluate()]


def constraints(
    wanted: Sequence[Requirement], pins: Sequence[Requirement], base: Mapping[str, str]
) -> list[str]:
    """Returns a line per package: the base's version if it is accepted, else the first pin."""
    lines = {name: f"=={base[name]}" for name in BASE_BRINGS}
    for pin in pins:
        name = canonicalize_name(pin.name)
        limits = [each.specifier for each in wanted if canonicalize_name(each.name) == name]
        keeps = name in base and all(each.contains(base[name], True) for each in limits)
        lines.setdefault(name, f"=={base[name]}" if keeps else f"{pin.specifier}")
    return [f"{name}{version}" for name, version in lines.items()]


def pip(command: str, *arguments: str) -> bool:
    """Runs pip; returns whether it succeeded."""
    options = ("--disable-pip-version-check", "--root-user-action=ignore")
    done = subprocess.run([sys.executable, "-m", "pip", command, *options, *arguments])
    return done.returncode == 0


def broken_dependencies() -> set[str]:
    """Returns what ``pip check`` reports; a base may have such before the build."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], stdout=subprocess.PIPE, text=True)
    return {*done.stdout.splitlines()} if done.returncode else set()


def check_base(base: Mapping[str, str]) -> None:
    """Exit with one line if torch is missing or too old."""
    for name in BASE_BRINGS:
        if name not in base or (name == "torch" and Version(base[name]) < Version(OLDEST_TORCH)):
            sys.exit(
                f"the base image has {name} {base.get(name, 'not at all')}: set BASE_IMAGE to an "
                f"image with torchvision and torch {OLDEST_TORCH} or newer"
            )


def main(folder: Path, own: Path, names: Sequence[str]) -> None:
    """Install the packages; exits with one line if they do not fit the base."""
    known = sorted(file.stem for file in folder.glob("*.in"))
    for name in names:
        if name not in known:
            sys.exit(f"EXTRAS={name}: must be one of {', '.join(known)}")
    base: dict[str, str] = {
        canonicalize_name(d.metadata["Name"]): d.version for d in distributions()
    }
    check_base(base)
    wanted = read(*(folder / f"{name}.in" for name in names), own)
    pins = read(*(folder / f"{name}.txt" for name in names))
    broken = broken_dependencies()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints(wanted, pins, base)))
        file.flush()
        options = ("--no-cache-dir", "--use-pep517", f"--constraint={file.name}")
        if not pip("install", *options, *map(str, wanted)):
            sys.exit(
                "pip could not install the job's packages, see its error above: if versions "
                "conflict, choose another BASE_IMAGE or other ranges in requirements/*.in or "
                "project/requirements.in; if pip got no answer, set a proxy: "
                "BUILD_OPTIONS='--build-arg HTTPS_PROXY=...'"
            )
    if new := broken_dependencies() - broken:
        sys.exit("the job's packages break packages of the base: " + "; ".join(new))
    if unneeded := [name for name in VIEWER_ONLY if name not in base]:
        pip("uninstall", "--yes", *unneeded)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
