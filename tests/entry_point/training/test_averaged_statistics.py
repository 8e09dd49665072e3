"""When averaged weights get batch statistics: for what is evaluated or exported, and no more."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from entry_point.training import checkpoints
from entry_point.training.learner import statistics_steps
from tests.entry_point.training import forked


def passes(root: Path) -> int:
    """Batches that the averaged weights were measured on, of the last evaluated epoch."""
    newest = max((root / "checkpoints").glob("step-*.pt"))
    state = torch.load(newest, weights_only=True)["learner"]["ema"]
    return int(state["1.num_batches_tracked"])


@pytest.mark.parametrize(
    ("steps_per_epoch", "measured"),
    [(1, 1), (3, 2), (8, 4), (50, 6), (5004, 16)],
)
def test_measuring_takes_an_eighth_of_the_steps_and_never_more_than_half(
    steps_per_epoch: int, measured: int
) -> None:
    assert statistics_steps(steps_per_epoch) == measured


LATE = (
    *("model.name=tests.own_models.tiny_net_with_state", "optim.ema_decay=0.9"),
    *("trainer.batch_size=12", "data.scale=[1,1]", "optim.schedule=step"),
    *("trainer.evaluate_every_epochs=9", "trainer.checkpoint_every_steps=1"),
)
"""Four steps per epoch, of which the last two measure."""


def keep_all_checkpoints() -> None:
    checkpoints.KEPT = 100


def test_a_run_that_ends_earlier_than_planned_exports_statistics_of_its_weights(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Of 3 epochs only the last one is to be evaluated; from step 7 on, the second is."""
    early, planned, shorter = tmp_path / "early", tmp_path / "planned", [*LATE, "trainer.epochs=2"]
    longer = [*LATE, "trainer.epochs=3"]
    assert forked.run(early, photo_folder, longer, prepare=keep_all_checkpoints) == 0
    for path in (early / "checkpoints").glob("*.pt"):
        if path.stem == "best" or path.stem > f"step-{7:09d}":
            path.unlink()
    assert passes(early) == 0
    for root in (early, planned):
        assert forked.run(root, photo_folder, shorter) == 0
        assert passes(root) == 2  # not those of earlier evaluations besides
    found, expected = (load_file(root / "model" / "model.safetensors") for root in (early, planned))
    for key in expected.keys() - {"1.running_mean", "1.running_var", "1.num_batches_tracked"}:
        assert torch.equal(found[key], expected[key]), key
    # Measured on other batches; a norm starts with a variance of 1.
    error = (found["1.running_var"] - expected["1.running_var"]).norm()
    assert error < 0.4 * (1 - expected["1.running_var"]).norm()
