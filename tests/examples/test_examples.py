"""Every example runs as its file says, on real photographs."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forkserver

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
Example = Callable[[str, Path], list[str]]
SHARED = ("__init__", "random_crop")


@pytest.fixture
def example(tmp_path: Path) -> Example:
    """Runs an example; returns its lines."""

    def run(name: str, data: Path) -> list[str]:
        arguments = ["-m", f"examples.{name}", str(data)]
        process = forkserver.start(arguments, tmp_path / "log", errors=tmp_path / "errors")
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        return output.splitlines()

    return run


def batches(lines: list[str]) -> list[tuple[int, str]]:
    """The size and dtype of each batch that an example tells."""
    found = [re.fullmatch(r"\((\d+), 3, 224, 224\) torch\.(\w+) \(\1,\)", line) for line in lines]
    assert all(found), lines
    return [(int(match[1]), match[2]) for match in found if match]


def test_image_folder(photo_folder: Path, example: Example) -> None:
    found = batches(example("image_folder", photo_folder / "train"))
    assert found == [(32, "float32"), (16, "float32")]


def test_webdataset_pipeline(packed: Path, example: Example) -> None:
    found = batches(example("webdataset_pipeline", packed / "train"))
    assert sum(size for size, _ in found) == 48
    assert {dtype for _, dtype in found} == {"uint8"}


def test_timm_loader(photo_folder: Path, example: Example) -> None:
    # timm leaves out the last, incomplete batch.
    assert batches(example("timm_loader", photo_folder / "train")) == [(32, "float32")]


def test_the_plain_loop_has_thirty_lines() -> None:
    source = (EXAMPLES / "plain_loop.py").read_text().partition('"""\n\nimport')[2]
    assert len([line for line in source.splitlines() if line.strip()]) <= 30


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_every_example_is_listed_and_tested(file: Path) -> None:
    if file.stem not in SHARED:
        assert f"`{file.name}`" in (EXAMPLES / "README.md").read_text()
        own = Path(__file__).with_name(f"test_{file.stem}.py")
        of_the_sdk = (ROOT / "tests/launch/sdk/test_notebook.py").read_text()
        of_the_wheel = Path(__file__).with_name("test_wheel.py").read_text()
        assert (
            own.exists()
            or f"def test_{file.stem}(" in Path(__file__).read_text()
            or f'"examples.{file.stem}"' in of_the_sdk
            or f'"examples/{file.name}"' in of_the_wheel
        )
