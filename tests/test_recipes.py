"""docs/adapt.md: each recipe runs exactly as printed, in a fresh copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.boxed_shapes import write_boxes
from tests.forked_python import forking_environment
from tests.photographs import write_photo_folder
from tests.printed_commands import ADAPT, BLOCK, copied

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / ADAPT
MOST_LINES = 45
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (project/\S+)\n")
SMALL = "image_size: 64\nresize: 96\n"
QUICK = {
    "data/folder.yaml": SMALL,
    "data/manifest.yaml": SMALL,
    "trainer/default.yaml": "report: false\n",
}
"""Defaults in the copy for what takes time and is no recipe's claim."""


@dataclass
class Recipe:
    """A section: its blocks run in order, in one copy of the repository."""

    title: str
    blocks: list[tuple[str, str]]
    """Each with its language. Python that starts with a comment naming a file in project/ is that
    file; other Python and the shell's lines are run."""


RECIPES = [
    Recipe(title, BLOCK.findall(text))
    for title, text in SECTION.findall(PAGE.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`$PHOTOS`: 8 classes with 4 photographs to train on, and one to validate."""
    return write_photo_folder(tmp_path_factory.mktemp("recipes") / "photos", train=4, val=1)


@pytest.fixture(scope="session")
def others(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`$LITDATA` and `$MDS`: the photographs as these packages write them."""
    folder = tmp_path_factory.mktemp("others")
    program = Path(__file__).with_name("write_others.py")
    subprocess.run([sys.executable, program, photos, folder], check=True, cwd=folder)
    return {"LITDATA": str(folder / "litdata"), "MDS": str(folder / "mds")}


def fresh_copy(folder: Path) -> Path:
    """What a clone of this tree would hold, with quick defaults."""
    copied(folder)
    # With the bytecode, which Python takes for files of the same time: compiling takes seconds.
    for package in ("custom_op", "entry_point", "launch"):
        for cache in (ROOT / package).rglob("__pycache__"):
            unfinished = shutil.ignore_patterns("*.pyc.*")  # of processes that import now
            shutil.copytree(cache, folder / cache.relative_to(ROOT), ignore=unfinished)
    for name, default in QUICK.items():
        with (folder / "configs" / name).open("a", encoding="utf-8") as file:
            file.write(default)
    return folder


def run(folder: Path, program: list[str], environment: dict[str, str]) -> None:
    log = folder.with_name("log")
    with log.open("w") as file:  # what forks writes to files
        done = subprocess.run(
            program,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=240,
        )
    assert done.returncode == 0, log.read_text()


@pytest.mark.timeout(1200)
@pytest.mark.skipif("TEST_DOCUMENTS" not in os.environ, reason="takes minutes: ONLY=documents")
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_a_recipe_runs_as_printed(
    recipe: Recipe,
    tmp_path: Path,
    photos: Path,
    request: pytest.FixtureRequest,
) -> None:
    folder = fresh_copy(tmp_path / "copy")
    environment = {"PHOTOS": str(photos)}
    if any("$MDS" in text for _, text in recipe.blocks):
        environment |= request.getfixturevalue("others")
    if any("$BOXES" in text for _, text in recipe.blocks):
        environment["BOXES"] = str(write_boxes(tmp_path / "boxes"))
    with forking_environment(folder):
        for language, text in recipe.blocks:
            if language == "python" and (named := FILE.match(text)):
                (folder / named[1]).write_text(text, encoding="utf-8")
            elif language == "python":
                run(folder, [str(folder / ".venv" / "bin" / "python"), "-c", text], environment)
            else:
                run(folder, ["bash", "-euo", "pipefail", "-c", text], environment)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_a_recipe_is_short_and_ends_with_a_command(recipe: Recipe) -> None:
    lines = [line for _, text in recipe.blocks for line in text.splitlines() if line]
    assert 0 < len(lines) <= MOST_LINES
    language, text = recipe.blocks[-1]
    assert language != "python" or not FILE.match(text)


def test_the_table_of_contents_lists_every_recipe() -> None:
    listed = re.findall(r"\[[^]]+\]\(#([a-z-]+)\)", PAGE.read_text().partition("\n## ")[0])
    assert listed == [recipe.title.lower().replace(" ", "-") for recipe in RECIPES]
