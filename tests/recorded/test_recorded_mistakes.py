"""The line that answers a mistake names the key, its value and the remedy, and the remedy works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config

MISTAKES = json.loads(Path(__file__).with_name("mistakes.json").read_text())


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: " ".join(mistake["overrides"]))
def test_a_mistake_is_answered_with_key_value_and_remedy(mistake: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_train_config(mistake["overrides"])
    line = str(caught.value)
    assert "\n" not in line
    assert not [part for part in mistake["line has"] if part not in line], line


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: " ".join(mistake["overrides"]))
def test_whoever_follows_the_line_has_no_mistake_left(mistake: dict[str, list[str]]) -> None:
    load_train_config(mistake["then"])
