"""docs/settings.md lists every key, and no key has two defaults."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from omegaconf import OmegaConf

from entry_point.config.compose import CONFIGS, load_config
from entry_point.config.train_config import TrainConfig
from launch import settings
from tests.launch.conftest import ROOT


def test_the_settings_page_is_what_make_knobs_prints() -> None:
    printed = "\n".join(settings.page()) + "\n"
    page = (ROOT / "docs" / "settings.md").read_text()
    assert printed == page, "run `python -m launch.settings > docs/settings.md`"


def test_every_command_with_a_configuration_is_on_the_page() -> None:
    assert set(settings.COMMANDS) == {path.stem for path in CONFIGS.glob("*.yaml")}


def config_classes(schema: type) -> Iterator[type]:
    yield schema
    for hint in get_type_hints(schema).values():
        if inner := settings.config_class(hint):
            yield from config_classes(inner)


@pytest.mark.parametrize("name", sorted(settings.COMMANDS))
def test_every_key_says_what_it_means(name: str) -> None:
    for schema in config_classes(settings.COMMANDS[name][1]):
        described, hints = settings.field_docstrings(schema), get_type_hints(schema)
        keys = {item.name for item in fields(schema) if not is_dataclass(hints[item.name])}
        assert set(described) == keys, schema
        assert all(text.endswith(".") for text in described.values()), schema


def test_settings_need_neither_torch_nor_an_sdk() -> None:
    program = (
        "import sys, launch.settings\n"
        "loaded = {'torch', 'numpy', 'boto3', 'sagemaker'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize(
    "file", sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))
)
def test_no_file_repeats_a_default_of_its_class(file: str) -> None:
    group = file.rpartition("/")[0]
    command = {"": Path(file).stem, "target": "launch"}.get(group, "train")
    plain = OmegaConf.to_container(OmegaConf.structured(settings.COMMANDS[command][1]))
    assert isinstance(plain, dict)
    defaults = settings.flat({str(key): value for key, value in plain.items()})
    prefix = "" if group in ("", "experiment") else f"{group}."
    changes = settings.flat(settings.load(CONFIGS / file), prefix)
    # The keys below kwargs have defaults elsewhere, if any.
    assert not [key for key, value in changes.items() if key in defaults and value == defaults[key]]


def test_a_training_key_has_the_default_that_its_class_says() -> None:
    config = load_config("train", TrainConfig, ["data=folder"])
    assert config == TrainConfig()
