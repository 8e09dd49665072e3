"""timm's models, by `model.name=timm/NAME`; timm is an optional package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import nn

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.resolve import TIMM


def timm_model(
    name: str, num_classes: int, image_size: int
) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """The function that builds `name` without published weights, and the job's arguments for it.

    Raises:
        ConfigError: timm is not installed, or has no such model.
    """
    wanted = require_timm_model("model.name", name)
    import timm

    named: dict[str, Any] = {"pretrained": False, "num_classes": num_classes}
    # Models whose weights depend on the image size take it; the others refuse the argument.
    if timm.get_pretrained_cfg(wanted).fixed_input_size:
        named["img_size"] = image_size
    return partial(timm.create_model, wanted), named


def require_timm_model(key: str, name: str) -> str:
    """Return timm's name of `timm/NAME`; raises ConfigError if there is no timm or no such model.

    NAME may end with the tag of published weights, as in `resnet18.a1_in1k`.
    """
    if find_spec("timm") is None:
        raise ConfigError(
            key,
            name,
            "needs the package timm: run `make setup EXTRAS=timm`, or build the image "
            "with `make image EXTRAS=timm`",
        )
    import timm

    wanted = name.removeprefix(TIMM)
    architecture, _, tag = wanted.partition(".")
    if not timm.is_model(architecture):
        must = f"timm {timm.__version__} has no such model{near(architecture, timm.list_models())}"
        raise ConfigError(key, name, must)
    tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        has = f"it has {', '.join(tags)}" if tags else "it has none"
        must = f"timm has no such weights of {architecture}; {has}{near(tag, tags)}"
        raise ConfigError(key, name, must)
    return wanted
