"""`trainer.early_stopping`: a run ends once its evaluations get no better."""

import signal
from pathlib import Path

from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_interrupted_runs import assert_same_end
from tests.entry_point.training.training_jobs import read_records

# The rate rises until later epochs are worse than the first ones.
WORSENS = (
    *("trainer.epochs=30", "trainer.log_every_steps=1", "trainer.checkpoint_every_steps=1"),
    *("optim.lr=100", "optim.warmup_epochs=30", "task.best=loss"),
)


def losses(root: Path) -> list[float]:
    return [record["val_loss"] for record in read_records(root) if "val_loss" in record]


def test_ranks_end_after_so_many_evaluations_without_a_better_one(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*WORSENS, "trainer.early_stopping=2"]
    assert forked.run(tmp_path, photo_folder, overrides, ranks=2) == 0
    found = losses(tmp_path)
    assert 2 < len(found) < 30 and min(range(len(found)), key=found.__getitem__) == len(found) - 3
    log = (tmp_path / "log").read_text()
    best = f"{min(found):.4g}"
    assert log.count(f"stopped early after epoch {len(found)}: no better loss than {best} in") == 1
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_an_interrupted_run_ends_after_the_same_evaluation(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*WORSENS, "trainer.early_stopping=3"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert forked.run(whole, photo_folder, overrides) == 0
    last = read_records(whole)[-1]["step"]
    # Within the evaluations that are not better.
    forked.run_until_step(parts, photo_folder, overrides, last - 4, signal.SIGTERM)
    assert forked.run(parts, photo_folder, overrides) == 0
    assert_same_end(parts, whole)


def test_more_patience_continues_a_run_that_stopped_early(
    tmp_path: Path, photo_folder: Path
) -> None:
    for patience, evaluations in ((1, "more"), (1, "the same"), (2, "more")):
        before = len(losses(tmp_path)) if (tmp_path / "log").exists() else 0
        overrides = [*WORSENS, f"trainer.early_stopping={patience}"]
        assert forked.run(tmp_path, photo_folder, overrides) == 0
        assert (len(losses(tmp_path)) > before) is (evaluations == "more")
    log = (tmp_path / "log").read_text()
    assert log.count("nothing to train; set trainer.early_stopping=2 or more, or null,") == 1
