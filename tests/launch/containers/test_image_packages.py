"""How the image gets the job's Python packages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import image_packages
from launch.image_packages import constraints, parse

ROOT = Path(__file__).resolve().parents[3]
REQUIREMENTS = ROOT / "requirements"
OWN = ROOT / "project" / "requirements.in"


def test_versions_of_the_base_win_if_they_satisfy_the_ranges() -> None:
    wanted = parse("numpy\nfilelock>=4\nhydra-core<2\n")
    locked = parse("numpy==2.5\nfilelock==4.2\nhydra-core==1.3.8\nsix==1.17\nOdd_Name==3\n")
    present = {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "numpy": "2.4", "filelock": "3.9"}
    present["odd-name"] = "2"
    assert constraints(wanted, locked, present) == [
        "torch==2.13.0+cpu",
        "torchvision==0.28.0",
        "numpy==2.4",
        "filelock==4.2",
        "hydra-core==1.3.8",
        "six==1.17",
        "odd-name==2",
    ]


def test_comments_options_and_lines_for_other_interpreters_are_skipped() -> None:
    text = "# why\n-c job.txt\na==1 ; python_version < '3'\nb==2 # note\n\nc==3\n"
    assert [str(r) for r in parse(text)] == ["b==2", "c==3"]


def test_the_requirements_of_the_project_can_be_parsed() -> None:
    wanted = {r.name for r in parse((REQUIREMENTS / "job.in").read_text())}
    locked = {r.name for r in parse((REQUIREMENTS / "job.txt").read_text())}
    assert wanted and wanted <= locked
    assert not wanted & set(image_packages.BASE_BRINGS)


def test_a_base_without_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_packages, "installed", lambda: {"torch": "2.13"})
    with pytest.raises(SystemExit, match="lacks torchvision: set BASE_IMAGE"):
        image_packages.main(REQUIREMENTS, OWN, ["job"])


@pytest.mark.parametrize("old", ["2.10.0+cpu", "1.13.1"])
def test_a_base_with_too_old_a_torch_is_one_line(monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    monkeypatch.setattr(
        image_packages, "installed", lambda: {"torch": old, "torchvision": "0.25.0"}
    )
    with pytest.raises(SystemExit, match=rf"has torch {re.escape(old)}, too old .*2\.11 or newer"):
        image_packages.main(REQUIREMENTS, OWN, ["job"])


@pytest.mark.parametrize("new", ["2.11.0", "2.15.0+cu133"])
def test_bases_with_a_newer_torch_are_accepted(new: str) -> None:
    image_packages.check_base({"torch": new, "torchvision": "0.26.0"})


def test_extras_are_installed_at_pins_compatible_with_the_job() -> None:
    names, dali = ["job", "dali"], {"nvidia-dali-cuda130"}
    wanted = image_packages.requirements(REQUIREMENTS, names, ".in")
    locked = image_packages.requirements(REQUIREMENTS, names, ".txt")
    assert {"hydra-core"} | dali <= {r.name for r in wanted}
    lines = constraints(wanted, locked, {"torch": "2.13.0"})
    names = [line.split("==")[0] for line in lines]
    assert len(names) == len(set(names))
    with pytest.raises(
        SystemExit, match=r"EXTRAS=dail: must be one of .*; there is no requirements/dail\.in"
    ):
        image_packages.requirements(REQUIREMENTS, ["dail"], ".in")


def test_image_packages_needs_only_pip_and_the_standard_library() -> None:
    """The base may lack `packaging`."""
    program = "import sys; sys.modules['packaging'] = None; import image_packages"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT / "launch", check=True)
