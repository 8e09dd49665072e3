"""What a setting names is looked up before the dataset is opened, which may take minutes."""

from pathlib import Path

import pytest

from entry_point.job import exit_codes
from tests.entry_point.training.training_jobs import run_job


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.name=resnet81", "model.name=resnet81: must be a classification"),
        ("model.name=project.models.smal_net", "did you mean small_net?"),
        ("model.weights=nowhere", "model.weights=nowhere: must be a file"),
        ("optim.name=project.nowhere.Sgd", "optim.name=project.nowhere.Sgd: "),
        ("optim.schedule=project.models.line", "optim.schedule=project.models.line: "),
        ("task.name=project.tasks.Ordered", "task.name=project.tasks.Ordered: "),
        ("task.loss=project.tasks.loss", "task.loss=project.tasks.loss: "),
        ("augment.name=project.augmentations.Nois", "did you mean Noise?"),
        ("loggers=[project.loggers.CsvLoger]", "did you mean CsvLogger?"),
    ],
)
def test_a_missing_name_is_found_before_the_dataset(
    override: str, line: str, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing"  # opening it would be the first error
    nothing.mkdir()
    told = run_job(tmp_path / "run", nothing, [override], code=exit_codes.USAGE)
    assert line in told, told
