"""What a setting names is looked up before the dataset is opened, which may take minutes."""

from pathlib import Path

import pytest
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig, load_train_config
from entry_point.job.program import ExitCode
from entry_point.training.models import require_model
from entry_point.training.named_parts import require_named_parts
from tests.entry_point.training.training_jobs import run_job

FALLING, ORDERED = "tests.own_optimizers.falling", "project.tasks.OrderedClasses"


@pytest.mark.parametrize(
    ("overrides", "line"),
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
        ("model.name=project.models.small_net model.kwargs.widht=8", "did you mean width?"),
        ("model.name=resnet18 model.kwargs.widht=8", "unexpected keyword argument 'widht'"),
        ("optim.kwargs.momentun=0.5", "did you mean momentum?"),
        ("optim.schedule=step optim.schedule_kwargs.evry=2", "did you mean every?"),
        (f"optim.schedule={FALLING} optim.schedule_kwargs.pow=2", "did you mean power?"),
        (f"task.name={ORDERED} task.kwargs.gama=1", "task.kwargs.gama=1: no such"),
        ("augment.name=project.augmentations.Noise augment.kwargs.strenght=1", "mean strength?"),
        ("optim.schedule=torch.optim.lr_scheduler.StepLR", "a class; name a function of (epoch,"),
        ("task.loss=torch.nn.CrossEntropyLoss", "a class; name a function of (outputs, targets)"),
        ("loggers=[project.loggers.CsvLogger] logger_kwargs.CsvLogger.nam=x", "did you mean name?"),
    ],
)
def test_a_missing_name_or_a_misspelt_argument_is_one_line(
    overrides: str, line: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        config, _ = load_train_config(["data=folder", *overrides.split()])
        require_named_parts(config, tmp_path)
    assert line in str(caught.value)


def test_it_is_found_before_the_dataset(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"  # opening it would be the first error
    nothing.mkdir()
    said = run_job(tmp_path / "run", nothing, ["optim.kwargs.nam=1"], code=ExitCode.USAGE)
    assert "optim.kwargs.nam=1: no such argument" in said


def test_a_model_that_computes_while_it_is_built_is_left_to_the_real_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(**_: object) -> torch.nn.Module:
        return torch.nn.Linear(*torch.ones(2).int().numpy())

    monkeypatch.setattr("entry_point.training.models.torchvision_builder", lambda _: build)
    require_model(ModelConfig(name="resnet18", kwargs={"width_per_group": 32}))
