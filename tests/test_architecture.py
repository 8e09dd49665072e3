"""The walls of the house: which room may import which."""

import sys
from pathlib import Path

import pytest

from tests.imports import ROOT, imported, imports, module_of, modules

AWS = {"sagemaker", "boto3", "botocore"}
# Prefixes of modules that a package must not import.
FORBIDDEN = {
    "examples": {"launch", "benchmarks", "tests", *AWS},
    "custom_op": {"entry_point", "launch", "benchmarks", "project", "tests", "hydra", *AWS},
    "entry_point": {"launch", "benchmarks", "project", "tests", *AWS},
    "launch": {"custom_op", "benchmarks", "project", "tests", "torch", "torchvision"},
    "benchmarks": {"project"},
    # Neither is in the image.
    "project": {"benchmarks", "tests", "launch"},
}
# They show the SDK, in its environment.
OF_THE_SDK = {"examples.estimator_v2"}
# What SageMaker, a launcher and the job agree on. The other modules of the job have its processes.
CONTRACT = {
    f"entry_point/job/{name}"
    for name in (
        "archive",
        "cores",
        "file_kinds",
        "gpus",
        "hosts",
        "known_tasks",
        "metrics_line",
        "own_code",
        "processing",
        "program",
        "run_folder",
        "text",
        "whole_file",
    )
}
# What one room may import of the others beside it, as folders or modules. A room that is not listed
# imports what it likes of its package; circles are refused everywhere.
MAY_IMPORT: dict[str, set[str]] = {
    "entry_point/job": set(),
    "entry_point/config": CONTRACT,
    "entry_point/data/plan": {"entry_point/config"},
    "entry_point/data/sources": {
        "entry_point/config",
        "entry_point/job",
        "entry_point/data/plan",
    },
    "entry_point/data/decode": {
        "entry_point/config",
        "entry_point/data/plan",
        "entry_point/data/sources",
    },
    "entry_point/serving": {
        "entry_point/config",
        "entry_point/job",
        "entry_point/data",
        "entry_point/model_folder",
    },
}
LAUNCH_MAY_SHARE = ("entry_point.config", *(path.replace("/", ".") for path in CONTRACT))


MODULES = modules()
IMPORTS = imports(MODULES)


def _path(name: str) -> str:
    return name.replace(".", "/")


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_nothing_forbidden(package: str) -> None:
    broken = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if name.split(".")[0] == package and name not in OF_THE_SDK
        for target in imported(path)
        if target.split(".")[0] in FORBIDDEN[package]
    ]
    assert not broken


def test_launch_imports_only_contract_and_config_of_the_job() -> None:
    broken = [
        f"{name} imports {target}"
        for name in MODULES
        if name.startswith("launch")
        for target in IMPORTS[name]
        if target.startswith("entry_point") and not target.startswith(LAUNCH_MAY_SHARE)
    ]
    assert not broken


def test_launch_programs_are_imported_by_no_room() -> None:
    programs = {
        name
        for name, path in MODULES.items()
        if path.parent == ROOT / "launch" and "__main__" in path.read_text()
    }
    broken = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if (ROOT / "launch") in path.parent.parents
        for target in IMPORTS[name] & programs
    ]
    assert programs and not broken


def test_the_contract_uses_only_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"entry_point"}
    broken = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if name.replace(".", "/") in CONTRACT
        for target in imported(path)
        if target.split(".")[0] not in allowed
        or (
            target.startswith("entry_point")
            and str(module_of(target, MODULES)).replace(".", "/") not in CONTRACT
        )
    ]
    assert not broken


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    package = room.split("/")[0]
    allowed = {room, *MAY_IMPORT[room]}
    broken = []
    for name, path in MODULES.items():
        if (ROOT / room) not in path.parents:
            continue
        for target in IMPORTS[name]:
            place = str(MODULES[target].parent.relative_to(ROOT))
            # What lies at the top of data/ (batches, errors, ranges) belongs to all its rooms.
            shared = place.split("/")[0] != package or place == str(Path(room).parent)
            found = _path(target)
            if not shared and not any(found == a or found.startswith(f"{a}/") for a in allowed):
                broken.append(f"{name} imports {target}")
    assert not broken


def test_no_modules_import_each_other_in_a_circle() -> None:
    circles: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circles.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in sorted(IMPORTS[name]):
                visit(target, [*path, name])
            done.add(name)

    for name in MODULES:
        visit(name, [])
    assert not circles, " -> ".join(circles[0])
