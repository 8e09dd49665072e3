"""A finished run, for the tests of what it leaves."""

from pathlib import Path

import pytest

from tests.entry_point.training import forked

OVERRIDES = (
    "model.name=project.models.small_net",
    "model.kwargs.width=8",
    "trainer.report=true",
    "trainer.epochs=8",
    "trainer.evaluate_every_epochs=8",
    "optim.lr=0.05",
    "data.resize=36",
)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> Path:
    """The finished run's folder. Tests must not change it."""
    root = tmp_path_factory.mktemp("run")
    assert forked.run(root, photo_folder, OVERRIDES) == 0, (root / "log").read_text()
    return root
