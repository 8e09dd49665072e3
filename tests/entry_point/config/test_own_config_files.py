"""Files that people add to configs/: what is wrong is one line with the file."""

import re

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig, load_train_config
from tests.entry_point.config.conftest import Write

PACKAGE = "# @package _global_\n"


def train_config(*overrides: str) -> TrainConfig:
    return load_train_config(overrides)[0]


@pytest.mark.parametrize(
    "text",
    [
        PACKAGE + "trainer:\n  epochs: 7\n",
        "\n\n  #  @package   _global_\ntrainer:\n  epochs: 7\n",
        "# @package _global_\r\ntrainer:\r\n  epochs: 7\r\n",
        PACKAGE + "defaults:\n  - finetune\n  - _self_\ntrainer:\n  epochs: 7\n",
    ],
)
def test_an_experiment_of_your_own_composes(text: str, write: Write) -> None:
    write("experiment/mine", text)
    assert train_config("experiment=mine").trainer.epochs == 7


@pytest.mark.parametrize(
    "text",
    [
        "trainer:\n  epochs: 7\n",
        "defaults:\n  - override /model: resnet50\n",
        "# @package global\ntrainer:\n  epochs: 7\n",
        "# mine\n" + PACKAGE + "trainer:\n  epochs: 7\n",
        "# @package: _global_\ntrainer:\n  epochs: 7\n",
        "\ufeff" + PACKAGE + "trainer:\n  epochs: 7\n",
    ],
)
def test_an_experiment_without_its_package_line_names_it(text: str, write: Write) -> None:
    write("experiment/mine", text)
    with pytest.raises(ConfigError) as caught:
        train_config("experiment=mine")
    ending = "; save it without a byte-order mark" if text.startswith("\ufeff") else ""
    assert str(caught.value) == (
        "experiment=mine: the first line of configs/experiment/mine.yaml must be "
        f"`# @package _global_`, before all others{ending}"
    )


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("trainer:\n\tepochs: 1\n", 3, r"found character '\t' that cannot start any token"),
        ("trainer:\n  epochs: 1\n   seed: 2\n", 4, "mapping values are not allowed here"),
        ("trainer:\n   epochs: 1\n  seed: 2\n", 4, "while parsing a block mapping"),
        ("trainer:\n  epochs: 1\n  epochs: 2\n", 4, "found duplicate key epochs"),
        ("model:\n  name: 'resnet18\n", 4, "while scanning a quoted scalar"),
    ],
)
@pytest.mark.parametrize("name", ["experiment/mine", "model/mine"])
def test_what_is_not_yaml_names_file_and_line(
    name: str, text: str, line: int, reason: str, write: Write
) -> None:
    write(name, PACKAGE + text)
    with pytest.raises(ConfigError) as caught:
        train_config(name.replace("/", "="))
    (message,) = caught.value.args
    assert message.startswith("configuration: not valid YAML: ") and reason in message
    assert f'configs/{name}.yaml", line {line}, column' in message
    assert message.endswith("; indent with spaces, never tabs")


def test_a_tab_in_the_file_of_a_program_is_named(write: Write) -> None:
    write("train", "defaults:\n\t- train_schema\n")
    with pytest.raises(ConfigError, match=r"not valid YAML: .*configs/train\.yaml\", line 2"):
        train_config()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PACKAGE + "- trainer\n", r"In 'experiment/mine': .*: Cannot merge DictConfig with List"),
        (PACKAGE + "trainer:\n  epochs: ${optim.lr\n", r"no viable alternative at .*optim\.lr"),
        (PACKAGE + "trainer.epochs: 7\n", r"a file nests keys: write trainer: \{epochs: VALUE\}"),
        (PACKAGE + "trainer:\n  epochs: 1\0\n", r'not allowed in ".*experiment/mine\.yaml"'),
        ((PACKAGE + "# f\xfcr").encode("latin-1"), r"experiment/mine\.yaml must be UTF-8 text"),
    ],
)
def test_each_other_mistake_in_a_file_has_a_reason(
    content: str | bytes, message: str, write: Write
) -> None:
    write("experiment/mine", content)
    with pytest.raises(ConfigError) as caught:
        train_config("experiment=mine")
    assert re.search(message, str(caught.value)) and "\n" not in str(caught.value)
