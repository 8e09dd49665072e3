"""What a setting names is looked up before the dataset is opened, which may take minutes."""

from pathlib import Path

import pytest
import torch

from entry_point.config.train_config import ModelConfig
from entry_point.job.program import ExitCode
from entry_point.training.models import require_model
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
    assert line in refusal(tmp_path, override)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("model.name=project.models.small_net model.kwargs.widht=8", "did you mean width?"),
        ("model.name=resnet18 model.kwargs.widht=8", "unexpected keyword argument 'widht'"),
        ("optim.kwargs.momentun=0.5", "did you mean momentum?"),
        ("optim.schedule=step optim.schedule_kwargs.evry=2", "did you mean every?"),
        (
            "optim.schedule=tests.own_optimizers.falling optim.schedule_kwargs.pow=2",
            "did you mean power?",
        ),
        (
            "task.name=project.tasks.OrderedClasses task.kwargs.gama=1",
            "task.kwargs.gama=1: no such",
        ),
        ("augment.name=project.augmentations.Noise augment.kwargs.strenght=1", "mean strength?"),
        ("loggers=[project.loggers.CsvLogger] logger_kwargs.CsvLogger.nam=x", "did you mean name?"),
    ],
)
def test_a_misspelt_argument_is_found_before_the_dataset(
    overrides: str, line: str, tmp_path: Path
) -> None:
    assert line in refusal(tmp_path, *overrides.split())


def refusal(folder: Path, *overrides: str) -> str:
    nothing = folder / "nothing"  # opening it would be the first error
    nothing.mkdir()
    return run_job(folder / "run", nothing, overrides, code=ExitCode.USAGE)


def test_a_model_that_computes_while_it_is_built_is_left_to_the_real_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(**_: object) -> torch.nn.Module:
        return torch.nn.Linear(*torch.ones(2).int().numpy())

    monkeypatch.setattr("entry_point.training.models.torchvision_builder", lambda _: build)
    require_model(ModelConfig(name="resnet18", kwargs={"width_per_group": 32}))
