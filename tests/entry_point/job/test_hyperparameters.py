"""Overrides reach the container unchanged, whatever they contain."""

import json
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from entry_point.job.hyperparameters import VALUE_CHARACTERS, decode, encode

TRICKY = [
    "data.root=/opt/ml/input/data/training",
    "trainer.amp=true",
    "optim.schedule=null",
    "data.mean=[0.485,0.456,0.406]",
    "note='it\\'s \"quoted\", a $HOME and ${x}'",
    "name=größe 画像 🖼",
    "+extra.key={a:1,b:[x,y]}",
    "~optim.momentum",
    "empty=",
    "lines=a\nb\tc",
]


def _as_the_container_reads(hyperparameters: dict[str, str]) -> dict[str, str]:
    """Pass them through a JSON file with sorted keys, as toolkits write it."""
    loaded: dict[str, str] = json.loads(json.dumps(hyperparameters, sort_keys=True))
    return loaded


def _composed_value(override: str) -> Any:
    """The value in a config after Hydra parses the override and OmegaConf resolves it."""
    parsed = OverridesParser.create().parse_override(override)
    config = OmegaConf.to_container(OmegaConf.create({"value": parsed.value()}), resolve=True)
    assert isinstance(config, dict)
    return config["value"]


def test_tricky_overrides_come_back_unchanged() -> None:
    assert sorted(decode(_as_the_container_reads(encode(TRICKY)))) == sorted(TRICKY)


def test_simple_overrides_travel_as_themselves() -> None:
    overrides = ["data=folder", "optim.lr=0.05", "data.mean=[0.1,0.2,0.3]", "optim.schedule=null"]
    assert encode(overrides) == dict(each.split("=") for each in overrides)


@given(st.lists(st.text()))
def test_any_overrides_come_back_unchanged(overrides: list[str]) -> None:
    assert sorted(decode(_as_the_container_reads(encode(overrides)))) == sorted(overrides)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "+", "~", "++"]),
            st.sampled_from(["a", "a.b", "a.b.c", "ab", "b"]),
            st.sampled_from(["1", "x", "'quoted, text'", "{b: 1}", "[1,2]"]),
        ),
        max_size=8,
    )
)
def test_overrides_of_the_same_setting_keep_their_order(parts: list[tuple[str, str, str]]) -> None:
    def touching(overrides: list[str], key: str) -> list[str]:
        names = [each.partition("=")[0].lstrip("+~") for each in overrides]
        pairs = zip(names, overrides, strict=True)
        return [each for name, each in pairs if f"{name}.".startswith(f"{key}.")]

    overrides = [f"{sign}{key}={value}" for sign, key, value in parts]
    arrived = decode(_as_the_container_reads(encode(overrides)))
    for key in ("a.b.c", "ab", "b"):
        assert touching(arrived, key) == touching(overrides, key)
    for whole, part in (("a", "a.b"), ("a", "a.b.c"), ("a.b", "a.b.c")):
        mine = [each for each in overrides if each.partition("=")[0].lstrip("+~") in (whole, part)]
        assert [each for each in arrived if each in mine] == mine


@settings(max_examples=30)
@given(st.lists(st.text(min_size=500, max_size=3000), min_size=1, max_size=40))
def test_long_overrides_are_split_into_chunks_that_sagemaker_accepts(overrides: list[str]) -> None:
    hyperparameters = encode(overrides)
    for key, value in hyperparameters.items():
        assert len(key) <= 256
        assert 0 < len(value) <= VALUE_CHARACTERS
        assert value.isascii() and "\n" not in value
    assert sorted(decode(_as_the_container_reads(hyperparameters))) == sorted(overrides)


def test_more_overrides_than_sagemaker_takes_hyperparameters_all_arrive() -> None:
    overrides = [f"model.kwargs.k{number:03d}={number}" for number in range(300)]
    hyperparameters = encode(overrides)
    assert len(hyperparameters) < 80
    assert sorted(decode(hyperparameters)) == overrides


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
        ('"adamw"', "adamw"),
        ('"0.1"', "0.1"),
        ('"true"', "true"),
        ("[1, 2.5, null, true]", [1, 2.5, None, True]),
        ('["a b", "c,d"]', ["a b", "c,d"]),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix/"),
        ("", ""),
    ],
)
def test_a_plain_key_becomes_an_override_with_its_typed_value(value: str, expected: object) -> None:
    assert _composed_value(decode({"optim.lr": value})[0]) == expected


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@given(
    st.text(alphabet=st.sampled_from("ab '\"\\${}[](),:=é\n\t#~!")).filter(
        lambda t: not _is_json(t)
    )
)
@example("\\\n")
def test_plain_text_reaches_the_config_literally(text: str) -> None:
    assert _composed_value(decode({"note": text})[0]) == text


def test_plain_keys_win_over_listed_overrides() -> None:
    hyperparameters = {"optim.lr": "0.5", "hydra_overrides_000": '["optim.lr=0.1"]'}
    assert decode(hyperparameters) == ["optim.lr=0.1", "optim.lr=0.5"]


def test_keys_of_the_sdk_and_of_tuning_jobs_are_not_overrides() -> None:
    foreign = {"sagemaker_region": "eu-west-1", "_tuning_objective_metric": "val/top1"}
    assert decode({**foreign, **encode(["a=1"])}) == ["a=1"]


def test_a_missing_chunk_is_an_error() -> None:
    hyperparameters = encode(["+x=" + "x" * 6000])
    del hyperparameters["hydra_overrides_001"]
    with pytest.raises(ValueError, match="send all chunks"):
        decode(hyperparameters)


@pytest.mark.parametrize("text", ['["a=1"', '{"a": 1}', "[1, 2]"])
def test_damaged_chunks_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="hydra_overrides_000"):
        decode({"hydra_overrides_000": text})
