"""The group `task`: what it takes, and one line for what it does not."""

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config

OWN = "task.name=no.such.Task"


@pytest.mark.parametrize("name", ["classification", "multilabel", "regression"])
def test_every_task_is_an_option(name: str) -> None:
    config, yaml = load_train_config([f"task={name}"])
    assert config.task.name == name and f"name: {name}" in yaml


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=multilable"], r"task=multilable: must be one of .*; did you mean multilabel\?"),
        (["task.name=regresion"], r"or a dotted path to your own code; did you mean regression\?"),
        (["task.name=a.1"], r"task\.name=a\.1: must be one of classification"),
        (["task.kwargs.x=1"], r"task\.kwargs\.x=1: no such key; task\.kwargs has gamma"),
        (["task.loss=focl"], r"task\.loss=focl: must be one of cross_entropy, focal, .*focal\?"),
        (["task=regression", "task.loss=focal"], r"must be one of squared_error, absolute_error"),
        (["task.best=mae"], r"task\.best=mae: must be one of accuracy, .*, loss"),
        (["task.class_weights=many"], r"task\.class_weights=many: must be auto, null, or a list"),
        (["task.class_weights=[1,-1]"], r"task\.class_weights=\[1,-1\]: must be auto"),
        (["task.class_weights=[1,.nan]"], r"task\.class_weights=\[1,.*\]: must be auto"),
        (["task.class_weights=[true]"], r"task\.class_weights=\[true\]: must be auto"),
        (["task=regression", "task.class_weights=auto"], r"regression has no classes; set null"),
        (["task.metrics=[a-b]"], r"task\.metrics=a-b: must be letters, digits and underscores"),
        ([f"task.metrics=[{','.join('abcdefghi')}]"], r"task\.metrics=\[a,.*\]: at most 8 names"),
        (
            ["task.kwargs.gamma=-1"],
            r"task\.kwargs\.gamma=-1: Input should be greater than or equal to 0",
        ),
        (
            ["task=multilabel", "task.kwargs.threshold=2"],
            r"threshold=2: Input should be less than or equal to ",
        ),
    ],
)
def test_what_is_wrong_is_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_train_config(overrides)
    assert "\n" not in str(caught.value)


def test_an_own_task_takes_any_metric_and_arguments_and_is_not_imported() -> None:
    settings = ["task.best=kappa", "task.metrics=[kappa]", "task.kwargs.depth=3"]
    config, _ = load_train_config([OWN, *settings])
    assert config.task.best == "kappa" and config.task.kwargs == {"depth": 3}
