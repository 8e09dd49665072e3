"""Install the job's Python packages into a base image that already has torch and other packages.

``python image_packages.py FOLDER OWN job [dali]`` runs in the image build. A package of the base
keeps its version if ``FOLDER/job.in`` accepts it; torch and torchvision always do. Other packages
get the versions pinned in ``job.txt``. Further names (``dali``) work the same way. The file ``OWN``
lists the packages of the user's code, which must accept those versions. The build fails if a
package of the base would get a broken dependency. Packages that only TensorBoard's viewer needs are
left out.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

# The base may lack `packaging`; pip has a copy.
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import NormalizedName, canonicalize_name
from pip._vendor.packaging.version import Version

BASE_BRINGS = ("torch", "torchvision")
# The first release with the stable ABI that the operator uses.
OLDEST_TORCH = "2.11"
# The job writes TensorBoard events but never displays them.
VIEWER_ONLY = ("grpcio", "tensorboard-data-server")


def parse(text: str) -> list[Requirement]:
    """Returns the requirements in a file that apply to this interpreter; skips comments and
    options."""
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    parsed = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    return [r for r in parsed if r.marker is None or r.marker.evaluate()]


def installed() -> dict[str, str]:
    """Canonical name -> version of every installed package."""
    return {canonicalize_name(d.metadata["Name"]): d.version for d in distributions()}


def constraints(
    wanted: Iterable[Requirement], locked: Iterable[Requirement], present: Mapping[str, str]
) -> list[str]:
    """Returns one line per package: the base's version if accepted, else the first pin."""
    accepted = {canonicalize_name(r.name): r.specifier for r in wanted}
    lines = [f"{name}=={present[name]}" for name in BASE_BRINGS if name in present]
    pins: dict[NormalizedName, Requirement] = {}
    for pin in locked:
        pins.setdefault(canonicalize_name(pin.name), pin)
    for name, pin in pins.items():
        if name in BASE_BRINGS:
            continue
        version = present.get(name)
        keeps = version is not None and (
            name not in accepted or accepted[name].contains(version, prereleases=True)
        )
        lines.append(f"{name}=={version}" if keeps else f"{name}{pin.specifier}")
    return lines


def dependency_problems() -> set[str]:
    """Returns what ``pip check`` reports; a base may have such problems before the build."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    return set(done.stdout.splitlines()) if done.returncode else set()


def install(wanted: Iterable[Requirement], lines: Iterable[str]) -> None:
    """Run pip with the constraints and without a cache; raises CalledProcessError."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        pip("install", "--no-cache-dir", "--use-pep517", "-c", file.name, *map(str, wanted))


def pip(command: str, *arguments: str) -> None:
    options = ["--disable-pip-version-check", "--root-user-action=ignore"]
    subprocess.run([sys.executable, "-m", "pip", command, *options, *arguments], check=True)


def check_base(present: Mapping[str, str]) -> None:
    """Exit with one line if torch is missing or too old."""
    advice = "set BASE_IMAGE to an image with torchvision and torch"
    missing = [name for name in BASE_BRINGS if name not in present]
    if missing:
        sys.exit(f"the base image lacks {' and '.join(missing)}: {advice} {OLDEST_TORCH} or newer")
    if Version(present["torch"]) < Version(OLDEST_TORCH):
        sys.exit(
            f"the base image has torch {present['torch']}, too old for the operator: {advice} "
            f"{OLDEST_TORCH} or newer"
        )


def requirements(folder: Path, names: Iterable[str], suffix: str) -> list[Requirement]:
    """Returns the requirements of all these files; exits with one line if there is no such file."""
    found = []
    for name in names:
        path = folder / f"{name}{suffix}"
        if not path.is_file():
            known = ", ".join(sorted(path.stem for path in folder.glob("*.in")))
            sys.exit(f"EXTRAS={name}: must be one of {known}; there is no requirements/{path.name}")
        found += parse(path.read_text())
    return found


def main(folder: Path, own: Path, names: Sequence[str]) -> None:
    """Install the packages; exits with one line if the base does not fit."""
    before = installed()
    check_base(before)
    wanted, locked = (requirements(folder, names, suffix) for suffix in (".in", ".txt"))
    wanted += parse(own.read_text())
    problems = dependency_problems()
    try:
        install(wanted, constraints(wanted, locked, before))
    except subprocess.CalledProcessError:
        sys.exit(
            "pip could not install the job's packages, see its error above: if versions conflict, "
            "choose another BASE_IMAGE or other ranges in requirements/*.in or "
            "project/requirements.in; if pip got no answer, set a proxy: "
            "BUILD_OPTIONS='--build-arg HTTPS_PROXY=...'"
        )
    if new := dependency_problems() - problems:
        sys.exit("the job's packages break packages of the base: " + "; ".join(new))
    if unneeded := [name for name in VIEWER_ONLY if name not in before]:
        pip("uninstall", "--yes", *unneeded)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
