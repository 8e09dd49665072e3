"""The Makefile tells what it can do, and the README names only what exists."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def targets() -> set[str]:
    rules = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "local-train" in rules
    return set(rules)


def test_help_lists_every_target() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = {line.split()[0] for line in listed.stdout.splitlines() if line.startswith("  ")}
    assert names == targets()


def test_every_make_target_in_the_documents_exists() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name for path in documents for name in re.findall(r"`make ([a-z-]+)", path.read_text())
    } | set(re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert "local-train" in named
    assert named <= targets()


@pytest.mark.parametrize("target", ["setup", "image", "docker-train"])
def test_without_a_usable_python_make_says_which_are(target: str) -> None:
    done = subprocess.run(["make", target, "PYTHON="], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no Python 3.10 to 3.13 found" in done.stderr
