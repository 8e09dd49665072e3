"""The house keeps its walls: who may import whom."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"custom_op", "entry_point", "launch", "benchmarks", "tests"}
# The only modules that the desk and the job share; all use nothing but the standard library.
SHARED = {"entry_point.hyperparameters", "entry_point.metrics_line", "entry_point.run_folder"}
# What the desk checks a job's overrides with: Hydra's, without torch.
SCHEMAS = {"entry_point.config", "entry_point.data.packing.config"}
FORBIDDEN = {
    "custom_op": ROOMS - {"custom_op"} | {"sagemaker", "boto3", "botocore", "hydra"},
    "entry_point": {"launch", "benchmarks", "tests", "sagemaker", "boto3", "botocore"},
    "launch": {"custom_op", "benchmarks", "tests", "torch", "torchvision"},
}


def imported(path: Path) -> Iterator[str]:
    """Every module name a file imports, wherever in the file, relative imports made absolute."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files(room: str) -> list[Path]:
    found = sorted((ROOT / room).rglob("*.py"))
    assert found, f"no Python files under {room}"
    return found


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(room)
        for name in imported(path)
        if name.split(".")[0] in FORBIDDEN[room]
    ]
    assert not broken


def test_the_desk_shares_only_pure_modules_with_the_job() -> None:
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("launch")
        for name in imported(path)
        if name.split(".")[0] == "entry_point"
        and not any(name.startswith(module) for module in SHARED | SCHEMAS)
    ]
    assert not broken


@pytest.mark.parametrize("module", sorted(SHARED))
def test_a_shared_module_uses_only_the_standard_library(module: str) -> None:
    import sys

    path = ROOT / f"{module.replace('.', '/')}.py"
    assert {name.split(".")[0] for name in imported(path)} <= sys.stdlib_module_names
