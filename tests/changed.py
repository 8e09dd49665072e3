"""Runs the tests of what has changed: `make test ONLY=changed`, or `... SINCE=COMMIT`.

Changed is what differs from SINCE (default: HEAD, or in a clean tree the commit before it). Its
tests are, in this order, the changed test files, those that import a changed module or a helper of
tests that does, and the others of its room: the folder below `tests` at the same path. What several
rooms share has many; `make test` runs all.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.imports import PACKAGES, ROOT, imports, modules

OTHERS = {
    "Makefile": "tests/test_makefile.py",
    "Dockerfile": "tests/launch/containers",
    "README.md": "tests/test_documents.py",
    "CHANGELOG.md": "tests/test_documents.py",
    "docs": "tests/test_documents.py",
    "configs": "tests/entry_point/config",
    "custom_op/csrc": "tests/custom_op",
    "examples": "tests/examples",
    "project": "tests/test_project_of_1_0.py",
    ".ci": "tests/test_makefile.py",
    "pyproject.toml": "tests/launch/test_environment.py",
    "requirements": "tests/launch/test_environment.py",
}
"""What is no Python -> its tests; a folder stands for what is in it."""


def main(arguments: list[str]) -> int:
    """Run them with pytest and these arguments; returns its exit code."""
    files = changed_files(os.environ.get("SINCE", ""))
    chosen = [*found_tests(files)]
    for file in files:
        if not any(_others(file)) and not file.endswith(".py"):
            sys.stdout.write(f"changed: no test is known for {file}\n")
    if not chosen:
        sys.stdout.write("changed: nothing to test\n")
        return 0
    sys.stdout.write(f"changed: {len(files)} files; {' '.join(chosen)}\n")
    sys.stdout.flush()
    return subprocess.call([sys.executable, "-m", "pytest", *arguments, *chosen], cwd=ROOT)


def changed_files(since: str) -> list[str]:
    """The files that differ from a commit, as paths below the root."""
    untracked = _git("ls-files", "--others", "--exclude-standard")
    if not since:
        since = "HEAD" if untracked or _git("diff", "--name-only", "HEAD") else "HEAD~1"
    return sorted({*_git("diff", "--name-only", since), *untracked})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def found_tests(files: Iterable[str]) -> Iterator[str]:
    """The test files and folders of changed files, each once, the nearest first."""
    yield from dict.fromkeys(path for path in _nearest(list(files)) if (ROOT / path).exists())


def _nearest(files: list[str]) -> Iterator[str]:
    known, importers = _importers()
    names = {name: path.relative_to(ROOT).as_posix() for name, path in known.items()}
    paths = {path: name for name, path in names.items()}
    changed = [paths[file] for file in files if file in paths]
    yield from (names[name] for name in changed if _is_test(name))
    near = [each for name in changed for each in sorted(importers.get(name, ()))]
    helpers = [name for name in (*changed, *near) if name.startswith("tests.")]
    near += [each for name in helpers for each in sorted(importers.get(name, ()))]
    yield from (names[name] for name in near if _is_test(name))
    for file in files:
        yield from _others(file)
        if file in paths and not file.startswith("tests/"):
            yield from _room(file)


def _room(file: str) -> list[str]:
    """The test files of the folder below `tests` at the file's path, or of one around it."""
    folders = (ROOT / folder for folder in Path("tests", file).parents if folder != Path("tests"))
    found = (sorted(folder.glob("test_*.py")) for folder in folders)
    return [path.relative_to(ROOT).as_posix() for path in next(filter(None, found), [])]


@cache
def _importers() -> tuple[dict[str, Path], dict[str, set[str]]]:
    """All modules, tests too, and for each of them those that import it."""
    known = modules((*PACKAGES, "tests"))
    importers: dict[str, set[str]] = {}
    for name, targets in imports(known).items():
        for target in targets:
            importers.setdefault(target, set()).add(name)
    return known, importers


def _is_test(name: str) -> bool:
    return name.rpartition(".")[2].startswith("test_")


def _others(file: str) -> Iterator[str]:
    for start, tests in OTHERS.items():
        if file == start or file.startswith(f"{start}/"):
            yield tests


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
