"""Overrides are hyperparameters on SageMaker, and hyperparameters of SDKs are overrides."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from entry_point.config.config_errors import ConfigError
from entry_point.config.hyperparameters import decode, encode
from entry_point.config.override_text import quote, spell
from entry_point.config.overrides import parse_overrides
from entry_point.config.train_config import load_train_config


def composed(override: str) -> Any:
    """The value in a config after Hydra has parsed the override and OmegaConf has resolved it."""
    (parsed,) = parse_overrides([override])
    config = OmegaConf.to_container(OmegaConf.create({"x": parsed.value()}), resolve=True)
    assert isinstance(config, dict)
    return config["x"]


def received(value: str) -> Any:
    """The value in the config of a job with this hyperparameter."""
    return composed(*decode({"x": value}))


TYPED = [
    "data.root=/opt/ml/input/data/training",
    "data.root=s3://bucket/year=2024/",
    "data.root='größe 画像 🖼'",
    "data.mean=[0.485,0.456,0.406]",
    "data.table.labels=['a b',\"c,d\",1_0]",
    "optim.groups={fc.*:{lr:0.1},layer1.*:{lr:0.001}}",
    "model.weights=null",
    "model.kwargs.x='it\\'s \"quoted\", a $HOME'",
    "model.kwargs.x='[1,2]'",
    "model.kwargs.x=",
    "data={root:2024_11_27,image_size:1_28}",
    "model=resnet50",
]


@pytest.mark.parametrize("override", TYPED)
def test_an_override_travels_as_itself(override: str) -> None:
    key, _, value = override.partition("=")
    assert encode([override]) == {key: value}
    assert decode({key: value}) == [override]


def test_of_one_key_the_last_override_counts() -> None:
    assert encode(["optim.lr=0.1", "trainer.epochs=2", "optim.lr=0.2"]) == {
        "optim.lr": "0.2",
        "trainer.epochs": "2",
    }


def test_a_part_of_a_setting_counts_beside_the_whole() -> None:
    sent = encode(["model.kwargs.width=64", "model.kwargs={depth:2}"])
    config, _ = load_train_config(["data.root=x", *decode(sent)])
    assert config.model.kwargs == {"width": 64, "depth": 2}


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("+model.kwargs.x=1", "model.kwargs.x=1"),
        ("++model.kwargs.x=[1,2]", "model.kwargs.x=[1,2]"),
        ("~model.kwargs.x", "model.kwargs.x=null"),
        ("~model.weights=a", "model.weights=null"),
    ],
)
def test_what_no_hyperparameter_can_say_is_answered_with_what_to_type(
    override: str, instead: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        encode(["optim.lr=0.1", override])
    assert str(raised.value) == (
        f"{override}: a job on SageMaker takes key=value only; type {instead}"
    )


def test_a_shell_variables_name_means_the_dotted_key() -> None:
    assert decode({"optim__lr": "0.05", "data": "folder"}) == ["data=folder", "optim.lr=0.05"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.01", 0.01),
        ("1e-3", 0.001),
        ("-3", -3),
        ("True", True),
        ("false", False),
        ("null", None),
        ("None", None),
        ("resnet50", "resnet50"),
        ('"0.1"', "0.1"),
        ('"true"', "true"),
        ("[1, 2.5, null, true]", [1, 2.5, None, True]),
        ("{a: 1, b: [x, y]}", {"a": 1, "b": ["x", "y"]}),
        (
            '{"fc.*": {"lr": 1e-05}, "b": ["it\'s", null, "1"]}',
            {"fc.*": {"lr": 1e-05}, "b": ["it's", None, "1"]},
        ),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix/"),
        ("", ""),
        ("a,b", "a,b"),
        ("it's", "it's"),
        ('say "no"', 'say "no"'),
        ("range(1,3)", "range(1,3)"),
    ],
)
def test_a_value_of_any_sender_is_what_it_looks_like(value: str, expected: object) -> None:
    assert received(value) == expected


TEXTS = st.text(alphabet=st.sampled_from("ab '\"\\${}[](),:=é\n\t#~!"))


@given(TEXTS.filter(lambda text: "${" not in text))
def test_json_of_an_sdk_is_what_it_stands_for(text: str) -> None:
    for value in (text, [text, "x"], {"a": text, "b": {"c": 1}}):
        assert received(json.dumps(value)) == value


@given(TEXTS)
@example("\\\n")
@example("${a}")
@example("null")
def test_a_spelled_text_is_read_back(text: str) -> None:
    assert composed(f"x={spell(text)}") == text
    assert composed(f"x={quote(text)}") == text
    assert composed(f"x={spell([text, 1.5, None, True])}") == [text, 1.5, None, True]


def test_keys_of_the_sdk_and_of_tuning_jobs_are_not_overrides() -> None:
    foreign = {"sagemaker_region": "eu-west-1", "_tuning_objective_metric": "val/top1"}
    assert decode({**foreign, **encode(["a=1"])}) == ["a=1"]
