"""The two programs that the Dockerfile runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.containers.image_build import python_packages
from launch.containers.image_build.python_packages import constraints, parse

SCRIPT = Path(python_packages.__file__).with_name("system_packages.sh")
REQUIREMENTS = SCRIPT.parents[3] / "requirements"
OWN = SCRIPT.parents[3] / "project" / "requirements.in"


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
    assert not wanted & set(python_packages.BASE_BRINGS)


def test_a_base_without_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_packages, "installed", lambda: {"torch": "2.13"})
    with pytest.raises(SystemExit, match="lacks torchvision: set BASE_IMAGE"):
        python_packages.main(REQUIREMENTS, OWN, ["job"])


@pytest.mark.parametrize("old", ["2.10.0+cpu", "1.13.1"])
def test_a_base_with_too_old_a_torch_is_one_line(monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    monkeypatch.setattr(
        python_packages, "installed", lambda: {"torch": old, "torchvision": "0.25.0"}
    )
    with pytest.raises(SystemExit, match=rf"has torch {re.escape(old)}, too old .*2\.11 or newer"):
        python_packages.main(REQUIREMENTS, OWN, ["job"])


@pytest.mark.parametrize("new", ["2.11.0", "2.15.0+cu133"])
def test_bases_with_a_newer_torch_are_accepted(new: str) -> None:
    python_packages.check_base({"torch": new, "torchvision": "0.26.0"})


def test_extras_are_installed_at_pins_compatible_with_the_job() -> None:
    # NVIDIA builds this DALI for Python 3.11 and newer.
    names, dali = ["job"], set()
    names, dali = ["job", "dali"], {"nvidia-dali-cuda130"}
    wanted = python_packages.requirements(REQUIREMENTS, names, ".in")
    locked = python_packages.requirements(REQUIREMENTS, names, ".txt")
    assert {"hydra-core"} | dali <= {r.name for r in wanted}
    lines = constraints(wanted, locked, {"torch": "2.13.0"})
    names = [line.split("==")[0] for line in lines]
    assert len(names) == len(set(names))
    with pytest.raises(
        SystemExit, match=r"EXTRAS=dail: must be one of .*; there is no requirements/dail\.in"
    ):
        python_packages.requirements(REQUIREMENTS, ["dail"], ".in")


def test_extras_without_packages_for_this_python_are_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.in").write_text('hydra-core; python_version < "3"\n')
    with pytest.raises(SystemExit, match=r"EXTRAS=odd: requirements/odd\.in has nothing"):
        python_packages.requirements(tmp_path, ["odd"], ".in")


def run_script(tmp_path: Path, installers: list[str], compiler: bool) -> tuple[int, str, str]:
    """Run the script with only these programs; returns its exit code, their calls, its stderr."""
    calls = tmp_path / "calls"
    for name in [*installers, "rm", *(["c++"] if compiler else [])]:
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    return done.returncode, calls.read_text() if calls.exists() else "", done.stderr


@pytest.mark.parametrize("compiler", [True, False])
def test_amazon_linux_gets_headers_and_a_missing_compiler(tmp_path: Path, compiler: bool) -> None:
    code, calls, _ = run_script(tmp_path, ["dnf"], compiler)
    assert code == 0
    install = calls.splitlines()[0]
    assert install.startswith("dnf install -y") and "libjpeg-turbo-devel" in install
    assert ("gcc-c++" in install) is not compiler
    assert "rm -rf /var/cache/dnf" in calls


@pytest.mark.parametrize("compiler", [True, False])
def test_debian_and_ubuntu_get_headers_and_a_missing_compiler(
    tmp_path: Path, compiler: bool
) -> None:
    code, calls, _ = run_script(tmp_path, ["apt-get"], compiler)
    assert code == 0
    install = calls.splitlines()[1]
    assert install.startswith("apt-get install -y --no-install-recommends libjpeg-dev")
    assert ("g++" in install) is not compiler
    assert "rm -rf /var/lib/apt/lists/" in calls


def test_an_unsupported_distribution_is_an_error_with_the_fix(tmp_path: Path) -> None:
    code, calls, stderr = run_script(tmp_path, [], compiler=True)
    assert code == 1
    assert calls == ""
    assert "BASE_IMAGE" in stderr


def test_python_packages_needs_only_pip_and_the_standard_library() -> None:
    """The base may lack `packaging`."""
    program = "import sys; sys.modules['packaging'] = None; import python_packages"
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=SCRIPT.parent,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parent)},
        check=True,
    )
