"""A job has one configuration: the supervisor composes it, and every rank trains with it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from entry_point.config import compose as composing
from entry_point.config.compose import resolved_yaml
from entry_point.config.train_config import load_train_config
from tests import forkserver
from tests.entry_point.job.test_processes import TWO_RANKS
from tests.entry_point.training import forked_ranks
from tests.entry_point.training.training_jobs import TINY, write_job


def count_compositions(file: Path) -> None:
    """Have this process, and those that are forked from it, write a line per composition."""

    compose: Callable[..., Any] = vars(composing)["compose"]

    def compose_and_count(*arguments: Any, **options: Any) -> Any:
        with file.open("a") as lines:
            lines.write(f"rank {os.environ.get('RANK')}\n")
        return compose(*arguments, **options)

    vars(composing)["compose"] = compose_and_count
    forked_ranks.prepare()


def run(root: Path, data: Path, overrides: Sequence[str], module: str) -> str:
    """Run a job; returns the lines of its compositions."""
    command, environment = write_job(root, data, overrides, module=module)
    compositions = root / "compositions"
    prepare = partial(count_compositions, compositions)
    log = root / "input/log"
    job = forkserver.start(command[1:], log, environment=environment, prepare=prepare)
    output, _ = job.communicate(timeout=240)
    assert job.returncode == 0, output
    return compositions.read_text()


def kept(*overrides: str) -> str:
    """The configuration in the model folder: without weights, ImageNet's mean and deviation."""
    config, _ = load_train_config([*TINY, *overrides])
    mean, std = config.data.normalization
    return resolved_yaml(replace(config, data=replace(config.data, mean=mean, std=std)))


def test_the_supervisor_composes_once_for_all_ranks_and_the_model_keeps_it(
    tmp_path: Path, photo_folder: Path
) -> None:
    root, overrides = tmp_path / "run", ["trainer.epochs=1", *TWO_RANKS]
    assert run(root, photo_folder, overrides, "entry_point") == "rank None\n"
    assert (root / "model" / "config.yaml").read_text() == kept(*overrides)


def test_the_trainer_started_by_hand_composes_its_overrides(
    tmp_path: Path, photo_folder: Path
) -> None:
    root = tmp_path / "run"
    assert run(root, photo_folder, ["trainer.epochs=1"], "entry_point.train") == "rank None\n"
    assert (root / "model" / "config.yaml").read_text() == kept("trainer.epochs=1")
