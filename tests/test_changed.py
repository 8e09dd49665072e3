"""Which tests `make test ONLY=changed` runs for a change."""

import subprocess

import pytest

from tests.changed import found_tests
from tests.imports import ROOT, modules

TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()


def test_what_imports_a_changed_module_comes_before_the_rest_of_its_room() -> None:
    chosen = [*found_tests(["entry_point/training/results/report.py"])]
    assert chosen[0] == "tests/entry_point/training/results/test_report.py"
    assert "tests/entry_point/training/results/test_summary.py" in chosen[1:]
    assert len(chosen) == len(set(chosen)) < 20


def test_a_changed_test_runs_first_and_a_helper_runs_what_uses_it() -> None:
    changed = ["tests/entry_point/job/test_hosts.py", "tests/photographs.py"]
    first, *others = found_tests(changed)
    assert first == changed[0]
    assert "tests/entry_point/data/plan/test_balance.py" in others


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("configs/train.yaml", "tests/entry_point/config"),
        ("custom_op/csrc/jpeg.h", "tests/custom_op"),
        ("docs/data.md", "tests/test_documents.py"),
    ],
)
def test_what_is_no_python_has_tests_too(file: str, tests: str) -> None:
    assert [*found_tests([file])] == [tests]


def test_every_module_of_the_product_has_tests() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in modules().values()}
    assert not [file for file in files & {*TRACKED} if not [*found_tests([file])]]
