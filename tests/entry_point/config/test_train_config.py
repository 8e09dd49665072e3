"""The configuration: everything in configs/ composes, and every mistake is named."""

import re
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.checking import json_tree, settings_of
from entry_point.config.compose import CONFIGS, load_config, load_resolved, resolved_yaml
from entry_point.config.config_errors import ConfigError
from entry_point.config.evaluate_config import EvaluateConfig
from entry_point.config.hyperparameters import decode
from entry_point.config.packing_config import CheckConfig, OptimizeConfig
from entry_point.config.predict_config import PredictConfig
from entry_point.config.serve_config import ServeConfig, load_serve_config
from entry_point.config.train_config import TrainConfig, load_train_config

GROUPS = ("data", "pipeline", "model", "optim", "trainer", "experiment")


def every_option() -> list[str]:
    return sorted(
        f"{group}={path.stem}" for group in GROUPS for path in (CONFIGS / group).glob("*.yaml")
    )


@pytest.mark.parametrize("option", every_option())
def test_every_option_of_every_group_composes(option: str) -> None:
    config, yaml = load_train_config([option])
    assert config.trainer.epochs >= 1
    assert "trainer:" in yaml


def test_the_default_is_the_demo() -> None:
    assert load_train_config([]) == load_train_config(["experiment=demo"])


def test_overrides_on_the_command_line_win_over_an_experiment() -> None:
    config, _ = load_train_config(["experiment=imagefolder_resnet50", "trainer.epochs=1"])
    assert (config.model.name, config.trainer.epochs) == ("resnet50", 1)


def test_every_mistake_has_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_train_config(["optim.lr=high", "trainer.epoch=3", "data.hflip=2"])
    keys = [line.partition("=")[0] for line in str(caught.value).split("\n")]
    assert keys == ["data.hflip", "optim.lr", "trainer.epoch"]


@pytest.mark.parametrize(
    ("typed", "advised"),
    [
        ("optim.name=AdamW", "did you mean adamw?"),  # not adam, whose weight decay is another
        ("task.best=Accuracy", "did you mean accuracy?"),
    ],
)
def test_the_nearest_word_in_any_case_is_advised(typed: str, advised: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(advised)}$"):
        load_train_config([typed])


def test_a_value_may_follow_another_setting() -> None:
    config, _ = load_train_config(["trainer.epochs=7", "optim.warmup_epochs=${trainer.epochs}"])
    assert config.optim.warmup_epochs == 7


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["optim.warmup_epochs=8", "trainer.epochs=2"], r"^optim\.warmup_epochs=8: the learning"),
        (["optim.warmup_epochs=2", "trainer.epochs=2"], r"set optim\.warmup_epochs=0\.2 or less"),
        (["trainer.epochs=1"], r"^optim\.warmup_epochs=1: .* trainer\.epochs=1; set "),
        (["optim.warmup_epochs=1.9", "trainer.epochs=2"], None),
        (["optim.warmup_epochs=0", "trainer.epochs=1"], None),
        (
            ["data.balance=classes", "task.class_weights=auto"],
            r"^task\.class_weights=auto: data\.b",
        ),
        (["data.balance=classes", "task.class_weights=[1,4]"], r"set one of them to null$"),
        (["data.balance=classes", "task.loss=focal"], None),
        (["task.class_weights=auto", "task.loss=focal"], None),
        (
            ["optim.schedule=step"],
            r"^optim\.schedule=step: .* set optim\.schedule_kwargs\.every=1\.7 ",
        ),
        (["optim.schedule=step", "optim.schedule_kwargs.every=4"], None),
        (
            ["data.progressive=[[0,96],[5,128]]"],
            r"^data\.progressive=\[\[0,96\],\[5,128\]\]: .* epoch 5",
        ),
        (["data.progressive=[[0,96],[4,128]]"], None),
        (["optim.name=adam"], r"^optim\.lr=0\.03: .* set optim\.lr=0\.001, or optim=adamw$"),
        (["optim.name=torch.optim.AdamW"], r"^optim\.lr=0\.03: "),
        (["optim=adamw"], None),
        (["optim.name=nadam", "optim.lr=0.02"], None),
        (
            ["task=multilabel", "task.label_smoothing=0.2"],
            r"^task\.label_smoothing=0\.2: ch.* drop",
        ),
        (
            ["task.loss=a.b", "task.label_smoothing=0.2"],
            r"task\.name=classification task\.loss=a\.b",
        ),
        (["task.loss=focal", "task.label_smoothing=0.2", "task.kwargs.gamma=1"], None),
        (["task.name=a.b", "task.label_smoothing=0.2", "task.kwargs.gamma=1"], None),
        (["task=multilabel"], None),
        (["task=regression", "task.label_smoothing=0"], None),
        (["task=segmentation", "task.label_smoothing=0.2"], None),
        (["task.kwargs.gamma=3"], r"^task\.kwargs\.gamma=3: .* task\.loss=null; drop it$"),
    ],
)
def test_what_cannot_be_right_has_a_line(overrides: list[str], says: str | None) -> None:
    lines = load_train_config(overrides)[0].doubts()
    assert len(lines) == (says is not None)
    assert says is None or re.search(says, lines[0])


@pytest.mark.parametrize("file", sorted((CONFIGS / "experiment").glob("*.yaml")), ids=str)
def test_no_recipe_is_doubtful(file: Path) -> None:
    assert load_train_config([f"experiment={file.stem}", "data.root=/photos"])[0].doubts() == []


def test_the_advice_on_a_long_warmup_and_on_two_cures_settles_it() -> None:
    given = ["trainer.epochs=3", "optim.warmup_epochs=3", "data.balance=classes"]
    given.append("task.class_weights=auto")
    config, _ = load_train_config(given)
    assert len(config.doubts()) == 2
    advised = re.findall(r"set (optim\.warmup_epochs=\S+)", "".join(config.doubts()))
    for cure in ("data.balance=null", "task.class_weights=null"):
        assert load_train_config([*given, *advised, cure])[0].doubts() == []


def test_the_advice_on_a_schedule_that_never_falls_settles_it() -> None:
    for epochs in (1, 5, 400):
        given = [
            "optim.schedule=step",
            "optim.schedule_kwargs.every=400",
            f"trainer.epochs={epochs}",
            "optim.warmup_epochs=0",
        ]
        (line,) = load_train_config(given)[0].doubts()
        (advised,) = re.findall(r"set (optim\.schedule_kwargs\.every=[\d.]+) ", line)
        assert load_train_config([*given, advised])[0].doubts() == []


def test_a_pattern_of_paths_needs_no_quotes() -> None:
    pattern = "/data/photos-{train,val}-{000..146}.tar"
    for given in (pattern, f"'{pattern}'"):
        config, _ = load_train_config(["data=webdataset", f"data.root={given}"])
        assert config.data.root == pattern
    with pytest.raises(ConfigError, match="not an override as in key=value"):
        load_train_config(["data.root=/a{b'"])


@pytest.mark.parametrize(
    "path",
    [
        "s3://b/year=2024/",
        "/data/photos (1)",
        "/home/zoë/データ",
        "/a&b/c#d;e!",
        "/a[1]",
    ],
)
def test_a_path_that_hydra_cannot_read_needs_no_quotes(path: str) -> None:
    config, _ = load_train_config(["data=folder", f"data.root={path}"], context="")
    assert config.data.root == path


def test_a_tilde_is_the_home_folder() -> None:
    config, _ = load_train_config(["data.root=~/photos", "model.weights=~/a.pth"])
    assert config.data.root == str(Path.home() / "photos")
    assert config.model.weights == str(Path.home() / "a.pth")
    assert load_serve_config(["model_dir=~/model"], {}).model_dir == str(Path.home() / "model")


@pytest.mark.parametrize(
    ("schema", "command", "others", "key"),
    [
        (TrainConfig, "train", [], "data.root"),
        (TrainConfig, "train", [], "model.weights"),
        (OptimizeConfig, "optimize", ["output=o"], "source"),
        (OptimizeConfig, "optimize", ["source=s"], "output"),
        (CheckConfig, "check_dataset", [], "root"),
        (PredictConfig, "predict", ["input=i"], "output_dir"),
        (EvaluateConfig, "evaluate", [], "model_dir"),
        (ServeConfig, "serve", [], "model_dir"),
    ],
)
def test_a_uri_is_no_folder_of_this_machine(
    schema: type, command: str, others: list[str], key: str
) -> None:
    """As a path, s3://bucket/packed would be the folder `s3:`, into which packing would write."""
    for uri in ("s3://bucket/photos", "https://host/a.tar", "S3://bucket"):
        with pytest.raises(ConfigError, match=f"^{key}={uri}: must be a path on this machine"):
            load_config(command, schema, [*others, f"{key}={uri}"])
    kept = load_train_config(["data.root=s3://bucket/photos"], context="")[0]
    assert kept.data.root == "s3://bucket/photos"


def test_an_empty_path_is_not_the_working_directory() -> None:
    """As of a shell's variable that is not set."""
    for schema, command, key in (
        (TrainConfig, "train", "data.root"),
        (PredictConfig, "predict", "output_dir"),
        (OptimizeConfig, "optimize", "output"),
    ):
        for typed in (f"{key}=", f"{key}= "):
            message = f"^{key}=: String should have at least 1 character"
            with pytest.raises(ConfigError, match=message):
                load_config(command, schema, [typed])


@pytest.mark.parametrize(
    "override", ["optim.lr=[1", "optim.lr={a:", "data.root=/a'b", "data.root=/ä,/ö", "x=a=${y}"]
)
def test_a_broken_list_or_quote_is_no_text(override: str) -> None:
    with pytest.raises(ConfigError, match="into single quotes") as refused:
        load_train_config([override])
    assert str(refused.value).startswith(f"{override}: ")


NUMBERS = {
    key: node.get("minItems", 0)
    for key, node in settings_of(json_tree(TrainConfig))
    if node.get("items", node).get("type") == "number"
}
"""The settings that are a number, or a list of so many."""


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_no_number_may_be_infinite_or_nan(value: str) -> None:
    typed, expected = [], set()
    for key, items in NUMBERS.items():
        found = f"[{','.join([*['0.5'] * (items - 1), value])}]" if items else value
        typed.append(f"{key}={found}")
        item = f"[{items - 1}]" if items else ""
        expected.add(f"{key}{item}={value}: Input should be a finite number")
    with pytest.raises(ConfigError) as caught:
        load_train_config(typed)
    assert expected and {*str(caught.value).split("\n")} == expected


def test_the_ranks_of_a_host_must_share_the_batch() -> None:
    refused = r"^trainer\.batch_size=16: must be a multiple of 3, ranks=3 x optim\.accumulate=1$"
    with pytest.raises(ConfigError, match=refused):
        load_train_config(["trainer.nproc_per_host=3", "trainer.batch_size=16"])


def test_the_pieces_of_a_batch_must_divide_each_ranks_share() -> None:
    settings = ["trainer.nproc_per_host=4", "trainer.batch_size=32"]
    load_train_config([*settings, "optim.accumulate=8"])
    with pytest.raises(ConfigError) as caught:
        load_train_config([*settings, "optim.accumulate=16"])
    message = "must be a multiple of 64, ranks=4 x optim.accumulate=16"
    assert str(caught.value) == f"trainer.batch_size=32: {message}"


def test_a_dollar_sign_can_be_escaped() -> None:
    config, _ = load_train_config(["data=folder", r"data.root=\${x}/photos"])
    assert config.data.root == "${x}/photos"


def test_composing_changes_no_directory_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load_train_config([])
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides",
    [[], ["experiment=stall"], ["data=folder", r"data.root=\${x}/a\b"], ["optim.lr=1e-7"]],
)
def test_a_resolved_configuration_loads_as_the_same_configuration(overrides: list[str]) -> None:
    config, yaml = load_train_config(overrides)
    assert load_resolved(yaml, TrainConfig) == config
    assert resolved_yaml(config) == yaml


def test_a_resolved_configuration_is_checked_like_any_other() -> None:
    _, yaml = load_train_config([])
    with pytest.raises(
        ConfigError, match=r"^trainer\.epochs=0: Input should be greater than or equal to 1$"
    ):
        load_resolved(yaml.replace("epochs: 5\n", "epochs: 0\n"), TrainConfig)
    with pytest.raises(ConfigError, match=r"^trainer\.epoch=5: no such key"):
        load_resolved(yaml.replace("  epochs: 5\n", "  epoch: 5\n"), TrainConfig)


@pytest.mark.parametrize("name", ["train", "optimize", "check_dataset"])
def test_a_word_is_a_list_of_one_wherever_words_are_listed(name: str) -> None:
    schema: Any = {"train": TrainConfig, "optimize": OptimizeConfig, "check_dataset": CheckConfig}
    kinds = settings_of(json_tree(schema[name]))
    keys = [key for key, node in kinds if node.get("items", {}).get("type") == "string"]
    assert "data.table.labels" in keys or "table.labels" in keys
    given = {"train": ["data=manifest", "data.root=x"], "check_dataset": ["root=x"]}.get(name, [])
    word = {"loggers": "mlflow"}
    for key in keys:
        found: Any = load_config(name, schema[name], [*given, f"{key}={word.get(key, 'animal')}"])
        for part in key.split("."):
            found = getattr(found, part)
        assert found == [word.get(key, "animal")]


def test_a_word_is_a_list_of_one_in_yaml_and_in_hyperparameters() -> None:
    sent = {
        "data": "manifest",
        "data.root": "x",
        "data.table.labels": "animal",
        "loggers": "mlflow",
    }
    config, yaml = load_train_config(decode(sent))
    assert config.data.table.labels == ["animal"] and config.loggers == ["mlflow"]
    by_hand = yaml.replace("loggers:\n- mlflow\n", "loggers: mlflow\n")
    assert by_hand != yaml and load_resolved(by_hand, TrainConfig) == config
