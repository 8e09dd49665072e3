"""docs/settings.md lists every key, and no key has two defaults."""

import re
from pathlib import Path

import pytest

from entry_point.config.compose import CONFIGS, defaults, load_config
from entry_point.config.train_config import TrainConfig
from tests import settings_page as settings
from tests.imports import ROOT


def test_the_settings_page_is_what_its_program_prints() -> None:
    printed = "\n".join(settings.page()) + "\n"
    page = (ROOT / "docs" / "settings.md").read_text()
    assert printed == page, "run `python -m tests.settings_page > docs/settings.md`"


def test_every_command_with_a_configuration_is_on_the_page() -> None:
    assert set(settings.COMMANDS) == {path.stem for path in CONFIGS.glob("*.yaml")}


def test_the_part_of_a_command_names_all_its_keys() -> None:
    parts = dict(zip(settings.COMMANDS, "\n".join(settings.page()).split("\n## ")[1:], strict=True))
    for name, (_, schema) in settings.COMMANDS.items():
        keys = settings.flat(defaults(schema))
        assert keys and not [key for key in keys if f"`{key}`" not in parts[name]]


def test_every_key_says_what_it_means() -> None:
    rows = [line for line in settings.page() if line.startswith("| `") and line.count(" | ") > 2]
    assert rows and all(row.endswith(". |") for row in rows)


def test_every_row_has_the_cells_of_its_table() -> None:
    head = 0
    for line in "\n".join(settings.page()).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line))
        head = (head or cells) if line.startswith("|") else 0
        assert not head or cells == head, line


@pytest.mark.parametrize("option", ["task=segmentation", "task=regression", "experiment=finetune"])
def test_an_option_changes_what_the_page_says(option: str) -> None:
    (row,) = (line for line in settings.page() if line.startswith(f"| `{option}` |"))
    changes = re.findall(r"`(.*?)`", row)[1:]
    assert load_config("train", TrainConfig, [option]) == load_config("train", TrainConfig, changes)


@pytest.mark.parametrize(
    "file", sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))
)
def test_no_file_repeats_a_default_of_its_class(file: str) -> None:
    group = file.rpartition("/")[0]
    command = {"": Path(file).stem, "target": "launch"}.get(group, "train")
    known = settings.flat(defaults(settings.COMMANDS[command][1]))
    is_global = "@package _global_" in (CONFIGS / file).read_text()
    prefix = "" if is_global or not group else f"{group}."
    changes = settings.flat(settings.load(CONFIGS / file), prefix)
    # The keys below kwargs have defaults elsewhere, if any.
    assert not [key for key, value in changes.items() if key in known and value == known[key]]


def test_a_training_key_has_the_default_that_its_class_says() -> None:
    config = load_config("train", TrainConfig, [])
    assert config == TrainConfig()
