"""What is no longer there is answered with what to use instead."""

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.retired import RETIRED
from entry_point.config.train_config import load_train_config
from tests import settings_page as settings


@pytest.mark.parametrize(
    ("row", "typed"),
    [
        ("trainer.gone", "trainer.gone=true"),
        ("gone", "gone.key=1"),
        ("augment.name=gone", "augment.name=gone"),
        ("pipeline.engine=gone", "pipeline.engine=gone"),
        ("pipeline=gone", "pipeline=gone"),
        ("gone=option", "gone=option"),
        ("trainer.diagnose=gone", "trainer.diagnose=gone"),
    ],
)
def test_a_retired_key_word_or_option_is_answered_with_what_to_use(
    row: str, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RETIRED, row, "this")
    with pytest.raises(ConfigError) as raised:
        load_train_config([typed])
    line = str(raised.value)
    assert line.startswith(row) and line.endswith(": retired: use this") and "\n" not in line


def test_no_setting_is_retired() -> None:
    keys = {line.split("`")[1] for line in "\n".join(settings.page()).split("\n") if "| `" in line}
    assert len(keys) > 100 and not keys & RETIRED.keys()
