"""Settings of views that do not fit each other are one line."""

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["data.views=0"], "data.views=0: Input should be greater than or equal to 1"),
        (
            ["data.views=2", "optim.cutmix_alpha=1"],
            "optim.cutmix_alpha=1.0: blends neighbors, but data.views=2 puts views of one image "
            "side by side; set 0",
        ),
    ],
)
def test_what_does_not_fit_is_named(overrides: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_train_config(["data=folder", "data.root=x", *overrides])
    assert str(caught.value) == error
