"""The content of the image."""

import json
import re
import shutil
from pathlib import Path

from launch.engine import Engine
from tests.launch.real_engine.conftest import build_image
from tests.launch.real_engine.engine_jobs import ROOT, described

REVISION = "org.opencontainers.image.revision"


def in_container(engine: Engine, image: str, *command: str, options: tuple[str, ...] = ()) -> str:
    program, *arguments = command
    return engine.call(
        "run", "--rm", "--network=none", *options, f"--entrypoint={program}", image, *arguments
    )


def versions(engine: Engine, image: str) -> dict[str, str]:
    listed = json.loads(in_container(engine, image, "python", "-m", "pip", "list", "--format=json"))
    return {package["name"]: package["version"] for package in listed}


def test_the_project_adds_little_to_the_base(engine: Engine, base_image: str, image: str) -> None:
    built, base = described(engine, image), described(engine, base_image)
    # Packages that the base lacks take 223 MB, 180 of it polars.
    assert int(str(built["Size"])) - int(str(base["Size"])) <= 230e6


def test_packages_of_the_base_keep_their_versions(
    engine: Engine, base_image: str, image: str
) -> None:
    before, after = versions(engine, base_image), versions(engine, image)
    changed = {name for name, version in before.items() if after.get(name) != version}
    # requirements/job.in needs newer versions of these than AWS's image has.
    assert changed <= {"filelock"}
    assert "hydra-core" in after


def test_the_image_contains_only_code_and_config(engine: Engine, image: str) -> None:
    listed = in_container(engine, image, "ls", "-A", "/opt/program").split()
    assert sorted(listed) == ["configs", "custom_op", "entry_point", "project"]
    assert in_container(engine, image, "ls", "-A", "/opt/custom_op_cache") == ""


def test_compiling_writes_only_to_its_cache(
    engine: Engine, base_image: str, prebuilt_image: str
) -> None:
    for folder in ("/tmp", "/root"):
        before, after = (
            in_container(engine, image, "ls", "-A", folder)
            for image in (base_image, prebuilt_image)
        )
        assert before == after
    assert in_container(engine, prebuilt_image, "ls", "/opt/custom_op_cache") != ""


def labels_of(engine: Engine, image: str) -> dict[str, str]:
    return dict(described(engine, image)["Config"]["Labels"])


def test_labels_name_version_revision_and_the_other_inputs(engine: Engine, image: str) -> None:
    labels = labels_of(engine, image)
    assert labels["org.opencontainers.image.version"] != "unknown"
    assert re.fullmatch("[0-9a-f]{12}(-dirty)?|untracked", labels[REVISION])
    inputs = {name: labels[f"managed-training-template.{name}"] for name in ("extras", "prebuild")}
    assert inputs == {"extras": "", "prebuild": "0"}


def test_env_prints_versions_and_the_operator_build(engine: Engine, prebuilt_image: str) -> None:
    output = engine.call("run", "--rm", "--network=none", prebuilt_image)
    for word in ("PyTorch version: 2.", "torchvision", "numpy", "/opt/custom_op_cache"):
        assert word in output
    assert f"IMAGE_REVISION={labels_of(engine, prebuilt_image)[REVISION]}\n" in output


WITHOUT_BYTECODE = """
import sys, pathlib, entry_point.serving.server, entry_point.training.trainer
specs = [spec for module in sys.modules.values() if (spec := vars(module).get("__spec__"))]
print(*[spec.name for spec in specs if spec.cached and not pathlib.Path(spec.cached).exists()])
"""


def test_what_jobs_and_endpoints_import_has_bytecode(engine: Engine, prebuilt_image: str) -> None:
    missing = in_container(engine, prebuilt_image, "python", "-B", "-c", WITHOUT_BYTECODE).split()
    assert len(missing) < 20, " ".join(missing)


def test_a_line_in_project_costs_a_small_layer(
    engine: Engine, base_image: str, prebuilt_image: str, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    kept = ("launch", "requirements", "configs", "custom_op", "entry_point", "project")
    for folder in kept:
        shutil.copytree(ROOT / folder, tree / folder)
    for file in ("Dockerfile", ".dockerignore", "pyproject.toml"):
        shutil.copy(ROOT / file, tree)
    (tree / "project/fresh.py").write_text("ANSWER = 42\n")
    (tree / "requirements/dev.txt").write_text("")
    changed = build_image(base_image, "container-test:changed", tree)
    try:
        before, after = (layers(engine, name) for name in (prebuilt_image, changed))
        new = [layer for layer in after if layer not in before]
        assert len(new) == 2 and len(after) == len(before)  # project/ and its bytecode
        listed = engine.call("history", "--format={{.Size}}", "--human=false", changed)
        sizes = [int(size) for size in listed.split() if size != "0"]  # the newest first
        assert sum(sizes[:2]) < 1e6
        run = ("python", "-c", "import project.fresh; print(project.fresh.ANSWER)")
        assert in_container(engine, changed, *run) == "42"
    finally:
        engine.call("rmi", "--force", changed)


def layers(engine: Engine, image: str) -> list[str]:
    """The digests of an image's layers, from the base up."""
    return list(described(engine, image)["RootFS"]["Layers"])
