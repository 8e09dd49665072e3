"""A job has one configuration: the supervisor composes it, and every rank trains with it."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from entry_point.config.train_config import load_train_config
from tests.entry_point.job.test_processes import TWO_RANKS
from tests.entry_point.training.training_jobs import TINY, write_job

COUNT_COMPOSITIONS = """
import os

import hydra

compose = hydra.compose

def compose_and_count(*arguments, **options):
    with open(os.environ["COMPOSITIONS"], "a") as file:
        file.write(f"rank {os.environ.get('RANK')}\\n")
    return compose(*arguments, **options)

hydra.compose = compose_and_count
"""


@pytest.fixture
def compositions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one line per composition, in any process that a test starts."""
    (tmp_path / "sitecustomize.py").write_text(COUNT_COMPOSITIONS)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    monkeypatch.setenv("COMPOSITIONS", str(tmp_path / "compositions"))
    return tmp_path / "compositions"


def run(root: Path, data: Path, overrides: Sequence[str], module: str) -> None:
    """Not forked: only a new interpreter imports `sitecustomize`."""
    command, environment = write_job(root, data, overrides, module=module)
    subprocess.run(command, env=environment, check=True, timeout=240)


@pytest.mark.parametrize("ranks", [(), TWO_RANKS])
def test_the_supervisor_composes_once_for_all_ranks_and_the_model_keeps_it(
    ranks: tuple[str, ...], tmp_path: Path, photo_folder: Path, compositions: Path
) -> None:
    root, overrides = tmp_path / "run", ["trainer.epochs=1", *ranks]
    run(root, photo_folder, overrides, "container")
    assert compositions.read_text() == "rank None\n"
    _, yaml = load_train_config([*TINY, *overrides])
    assert (root / "model" / "config.yaml").read_text() == yaml


def test_the_trainer_started_by_hand_composes_its_overrides(
    tmp_path: Path, photo_folder: Path, compositions: Path
) -> None:
    root = tmp_path / "run"
    run(root, photo_folder, ["trainer.epochs=1"], "train")
    assert compositions.read_text() == "rank None\n"
    _, yaml = load_train_config([*TINY, "trainer.epochs=1"])
    assert (root / "model" / "config.yaml").read_text() == yaml
