"""`trainer.diagnose=one_batch` and the debug recipe."""

import signal
from pathlib import Path

from entry_point.job.program import ExitCode
from tests import forkserver
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_interrupted_runs import OVERRIDES, assert_same_end
from tests.entry_point.training.training_jobs import read_records

ONE_BATCH = (*OVERRIDES, "trainer.diagnose=one_batch")


def test_the_loss_of_the_debug_recipe_falls(tmp_path: Path) -> None:
    few = ["data.kwargs.train_images=80", "data.kwargs.val_images=10", "trainer.report=false"]
    arguments = ["-m", "entry_point.train", "experiment=debug", *few, "pipeline=pillow"]
    done = forkserver.start(
        [*arguments, "pipeline.num_workers=0", "trainer.log_every_steps=1"],
        tmp_path / "log",
        environment={"ML_ROOT": str(tmp_path), "DEMO_DATA": str(tmp_path / "demo")},
    )
    output, _ = done.communicate()
    assert done.returncode == 0, output
    losses = [record["loss"] for record in read_records(tmp_path) if "loss" in record]
    assert losses[-1] < 0.7 * losses[0]


def test_one_batch_keeps_its_batch_after_a_stop(tmp_path: Path, photo_folder: Path) -> None:
    assert forked.run(tmp_path / "whole", photo_folder, ONE_BATCH) == 0
    root = tmp_path / "interrupted"
    code = forked.run_until_step(root, photo_folder, ONE_BATCH, 4, signal.SIGTERM)
    assert code == ExitCode.STOPPED
    assert forked.run(root, photo_folder, ONE_BATCH) == 0
    assert_same_end(root, tmp_path / "whole")
