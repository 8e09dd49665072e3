"""Which module imports which, of the product and of its tests."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("custom_op", "entry_point", "launch", "benchmarks", "project", "examples")


def modules(packages: Iterable[str] = PACKAGES) -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    assert found
    return found


def imported(path: Path) -> Iterator[str]:
    """Every dotted name that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str, known: dict[str, Path]) -> str | None:
    """The module among those known that a dotted name lives in."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def imports(known: dict[str, Path]) -> dict[str, set[str]]:
    """Module -> the modules among those known that it imports."""
    return {
        name: {
            found for each in imported(path) if (found := module_of(each, known)) and found != name
        }
        for name, path in known.items()
    }
