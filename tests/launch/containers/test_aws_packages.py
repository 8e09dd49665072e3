"""The job's packages fit into AWS's image: pip's resolver, without a download of torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import image_packages
from tests.launch.containers.test_image_packages import write_wheel

REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements"
LIST = Path(__file__).with_name("aws_image_packages.txt")
EXTRAS = ("dali", "mlflow", "timm", "wandb")
# Two that are large and one that is no wheel: pip takes them as given, and as needing nothing.
GIVEN = ("torch", "torchvision", "antlr4-python3-runtime")
# What requirements/*.in needs newer than AWS has it.
REPLACED = {"filelock", "idna"}


def aws_packages() -> dict[str, str]:
    """Name -> version of every package in AWS's image."""
    lines = (line for line in LIST.read_text().splitlines() if not line.startswith("#"))
    return dict(line.split("==") for line in lines)


def test_the_stand_in_base_of_the_container_tests_has_versions_of_aws_image() -> None:
    file = LIST.parents[1] / "real_engine/stand_in/requirements.txt"
    stand_in = {r.name: str(r.specifier) for r in image_packages.read(file)}
    present = aws_packages()
    differ = {name for name, pin in stand_in.items() if pin != f"=={present[name]}"}
    assert differ == {"torch", "torchvision"}


@pytest.mark.skipif(
    not os.environ.get("REQUIRE_DALI"), reason="make test ONLY=dali downloads what is large"
)
@pytest.mark.timeout(600)
def test_pip_finds_versions_for_the_job_dali_and_all_extras_in_aws_image(tmp_path: Path) -> None:
    present = aws_packages()
    for name in GIVEN:
        write_wheel(tmp_path, name, present[name])
    names = ["job", *EXTRAS]
    wanted = image_packages.read(*(REQUIREMENTS / f"{name}.in" for name in names))
    pins = image_packages.read(*(REQUIREMENTS / f"{name}.txt" for name in names))
    lines = image_packages.constraints(wanted, pins, present)
    chosen = dict(line.split("==") for line in lines)
    assert {name for name in chosen if present.get(name, chosen[name]) != chosen[name]} == REPLACED
    (tmp_path / "constraints.txt").write_text("\n".join(lines))
    # A target, so that this environment's packages do not matter and another Python may be named.
    options = ["--dry-run", f"--target={tmp_path}/none", f"--find-links={tmp_path}"]
    options += ["--only-binary=:all:", "--python-version=3.12"]
    options += [f"--constraint={tmp_path}/constraints.txt"]
    command = [sys.executable, "-m", "pip", "install", *options, *map(str, wanted)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
