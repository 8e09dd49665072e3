"""Text settings are what was typed, although Hydra and YAML read numbers and truth values there."""

import pytest

from entry_point.config.compose import load_config, load_resolved, resolved_yaml
from entry_point.config.config_errors import ConfigError
from entry_point.config.evaluate_config import EvaluateConfig
from entry_point.config.hyperparameters import decode, encode
from entry_point.config.packing_config import CheckConfig, OptimizeConfig
from entry_point.config.predict_config import PredictConfig
from entry_point.config.serve_config import load_serve_config
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.sweep import combinations
from launch.sagemaker.config import load_launch_config
from tests.entry_point.config.conftest import Write

ODD = [
    *("2024_11_27", "1_0", "1e5", "1E5", "1_000", "0x10", "007", "1.10", "5.", ".5", "+5", "-0"),
    *("2024", "2024-11-27", "12:30", "nan", "NaN", "inf", "-inf", "true", "False", "TRUE"),
    *("on", "off", "yes", "no", "~x", "1e", "_1", "1__0", "20e-3"),
]
"""Names of folders, columns and models that look like something else."""


def train(*overrides: str) -> TrainConfig:
    return load_train_config(overrides)[0]


@pytest.mark.parametrize("text", ODD)
def test_a_text_setting_is_what_was_typed(text: str) -> None:
    config = train(
        "data=manifest",
        f"data.root={text}",
        f"data.images={text}",
        f"data.table.path={text}",
        f"data.table.labels={text}",
        f"model.name=m{text.strip('~+-.:').replace(':', '')}",
        f"model.weights={text}",
    )
    assert config.data.root == config.data.images == text
    assert config.data.table.path == config.model.weights == text
    assert config.data.table.labels == [text]


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_the_items_of_a_list_are_what_was_typed(sign: str) -> None:
    typed = "[1_0, 2e3,'1_1',\"a,1_0\",x,007,true, 1.10 ]"
    labels = train("data.root=x", f"{sign}data.table.labels={typed}").data.table.labels
    assert labels == ["1_0", "2e3", "1_1", "a,1_0", "x", "007", "true", "1.10"]


def test_the_last_value_counts() -> None:
    def root(*overrides: str) -> str | None:
        return train(*overrides).data.root

    assert root("data.root=1_0", "data.root=2_0") == "2_0"
    assert root("data.root=1_0", "data.root='10'") == "10"
    assert root("data.root=1_0", "data={root:2_0,image_size:1_28}") == "2_0"
    assert root("data={root:2_0}", "data.root=1_0") == "1_0"
    assert root("data.root=1_0", "data.root=x") == "x"
    assert root("data.root=1_0", "data.root=null") is None
    assert root("data.root=1_0", "~data.root") is None


def test_numbers_and_arguments_of_your_own_are_still_numbers() -> None:
    config = train(
        "data.root=x",
        "trainer.epochs=1_0",
        "optim.lr=1e-1",
        "trainer.report=False",
        "model.kwargs.width=1_0",
        "model.kwargs.deep={a:1e5,b:[true,null]}",
        "data.ratio=[.5,5_0]",
    )
    assert (config.trainer.epochs, config.optim.lr, config.trainer.report) == (10, 0.1, False)
    assert config.model.kwargs == {"width": 10, "deep": {"a": 1e5, "b": [True, None]}}
    assert config.data.ratio == [0.5, 50]
    with pytest.raises(
        ConfigError, match=r"^trainer\.epochs=1\.5: Input should be a valid integer$"
    ):
        train("data.root=x", "trainer.epochs=1.5")


@pytest.mark.parametrize("key", ["model.name", "data.table.separator", "data.format"])
def test_null_is_no_text(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}=null: Input should be a valid string$"):
        train("data.root=x", f"{key}=null")


def test_every_program_takes_the_text() -> None:
    optimize = load_config(
        "optimize", OptimizeConfig, ["source=2024_11_27", "output=1e5", "table.labels=[1_0]"]
    )
    assert (optimize.source, optimize.output) == ("2024_11_27", "1e5")
    assert optimize.dataset("x").table.labels == ["1_0"]
    check = load_config("check_dataset", CheckConfig, ["root=1_0", "data.table.path=2e3"])
    assert check.dataset().root == "1_0" and check.dataset().table.path == "2e3"
    given = ["input=1_0", "model_dir=2e3", "table.path=0x10", "output_dir=1.10"]
    predict = load_config(
        "predict", PredictConfig, [*given, "data.images=1_0", "data.gray_bits=1_2"]
    )
    assert (predict.input, predict.model_dir, predict.output_dir) == ("1_0", "2e3", "1.10")
    assert predict.table.path == "0x10" and predict.data == {"images": "1_0", "gray_bits": 12}
    changes = ["data.root=2024_11_27", "data.kwargs.x=1_0", "model_dir=1_0", "output_dir=1_1"]
    evaluate = load_config("evaluate", EvaluateConfig, changes)
    assert evaluate.data == {"root": "2024_11_27", "kwargs": {"x": 10}}
    assert (evaluate.model_dir, evaluate.output_dir) == ("1_0", "1_1")
    assert load_serve_config([], {"SERVE_OVERRIDES": "model_dir=1_0"}).model_dir == "1_0"


def test_variables_and_tags_of_a_launch_are_text() -> None:
    given = [f"{key}={{A:1_0,B:1.10,C:true,D:null}}" for key in ("job.environment", "job.tags")]
    config, job = load_launch_config([*given, "job.tags.E=null", "job.name=1_0", "data.root=1e5"])
    assert config.job.environment == {"A": "1_0", "B": "1.10", "C": "true", "D": "null"}
    assert config.job.tags == {**config.job.environment, "E": "null"}
    assert config.job.name == "1_0" and job == ["data.root=1e5"]


def test_hyperparameters_are_the_text() -> None:
    for value in ("2024_11_27", '"2024_11_27"', "1e5", '"1e5"', "007", "True"):  # SDK v2 quotes
        assert train(*decode({"data.root": value})).data.root == value.strip('"')
    config = train(*decode({"data.root": "x", "data.table.labels": '[1e5, 1.10, "1_0", true]'}))
    assert config.data.table.labels == ["1e5", "1.10", "1_0", "true"]
    sent = ["data=manifest", "data.root=1e5", "data.table.labels=[1_0,2e3]"]
    config = train(*decode(encode(sent)))
    assert config.data.root == "1e5" and config.data.table.labels == ["1_0", "2e3"]


def test_a_resolved_configuration_keeps_the_text() -> None:
    config = train("data.root=x")
    for text in [*ODD, "null", "y", "=", "0o7", "1:30:00"]:
        config.data.root = text
        assert load_resolved(resolved_yaml(config), TrainConfig).data.root == text


def test_a_sweep_over_text_trains_on_each() -> None:
    runs = combinations(["data.root=2024_11_27,1e5,x", "optim.lr=1e-2,1e-1"])
    roots = [train(*run).data.root for run in runs]
    assert roots == [text for text in ("2024_11_27", "1e5", "x") for _ in range(2)]
    assert [run[1] for run in runs[:2]] == ["optim.lr=1e-2", "optim.lr=1e-1"]
    labels = combinations(["data=manifest", "data.root=x", "data.table.labels=[1_0],[2e3,y]"])
    assert [train(*run).data.table.labels for run in labels] == [["1_0"], ["2e3", "y"]]
    assert train(*combinations(["data.root=choice(1_0,2_0)"])[1]).data.root == "2_0"
    assert train(*combinations(["data.root=range(1,3)"])[1]).data.root == "2"


def test_an_option_may_be_called_by_a_number(write: Write) -> None:
    write("experiment/2024_11_27", "# @package _global_\ntrainer:\n  epochs: 7\n")
    write("model/1e5", "name: resnet34\n")
    assert train("experiment=2024_11_27").trainer.epochs == 7
    assert train("experiment=[demo,2024_11_27]").trainer.epochs == 7
    assert train("model=1e5").model.name == "resnet34"
    assert train(*combinations(["experiment=demo,2024_11_27"])[1]).trainer.epochs == 7


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2024_11_27", "20241127"),
        ("12:30", "750"),
        ("1.10", "1.1"),
        ("2024", "2024"),
        ("on", "true"),
    ],
)
def test_a_text_that_yaml_reads_as_a_number_is_refused(
    written: str, read: str, write: Write
) -> None:
    write("experiment/mine", f"# @package _global_\ndata: {{root: {written}}}\n")
    refused = "Input should be a valid string; in a file of configs/, write the text in quotes"
    with pytest.raises(ConfigError, match=f"^data.root={read}: {refused}$"):
        train("experiment=mine")
    assert train("experiment=mine", "data.root=1_0").data.root == "1_0"
    write("experiment/mine", f"# @package _global_\ndata: {{root: '{written}'}}\n")
    assert train("experiment=mine").data.root == written


def test_an_object_of_json_is_read_on_the_command_line_too() -> None:
    config, _ = load_train_config(["data.root=x", 'optim.groups={"fc.*": {"lr": 0.1}}'])
    assert config.optim.groups == {"fc.*": {"lr": 0.1}}


@pytest.mark.parametrize("plus", ["+", "++"])
def test_an_option_may_be_typed_as_hydra_adds_one(plus: str) -> None:
    config, _ = load_train_config([f"{plus}experiment=finetune", "data.root=x"])
    assert config.model.weights == "pretrained"
