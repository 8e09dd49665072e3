"""Which settings need a package that is only in an image built with it (`make image EXTRAS=...`).

Uses the standard library only, because `make docker-train` runs before anything is installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from entry_point.config.resolve import TIMM

LABEL = "managed-training-template.extras"
"""The image's label with the names in EXTRAS; the Dockerfile sets it."""


def needed_extras(setting: Callable[[str], Any]) -> dict[str, str]:
    """What the image needs besides job.in: a name of requirements/*.in -> the setting.

    `setting` returns a setting's value by its key, or None.
    """
    model = setting("model.name") or ""
    return {
        extra: text
        for extra, text, is_used in (
            ("dali", "pipeline=dali", setting("pipeline.engine") == "dali"),
            ("timm", f"model.name={model}", model.startswith(TIMM)),
            ("mlflow", "loggers=[mlflow]", "mlflow" in (setting("loggers") or ())),
            ("onnx", "trainer.onnx=true", setting("trainer.onnx") in (True, "true")),
        )
        if is_used
    }


def missing_extras(
    image: str, label: str | None, needed: Mapping[str, str], remedy: str = ""
) -> tuple[list[str], str | None]:
    """Lines for what an image with this label lacks, and a warning if it has no label.

    `image` is as the user types it; `remedy` ends the advice to build another.
    """
    if label is None and needed:
        unknown = f"{image}: could not read whether it has {', '.join(needed)}"
        return [], f"{unknown}; {', '.join(needed.values())} needs it"
    built_with = (label or "").split()
    missing = {extra: text for extra, text in needed.items() if extra not in built_with}
    build = f'`make image EXTRAS="{" ".join([*built_with, *missing])}"`{remedy}'
    return [
        f"{text}: {image} was built without {extra}; build it with {build}"
        for extra, text in missing.items()
    ], None


_OVERRIDE = re.compile(r"\+{0,2}([\w/.]+)=(.*)", re.DOTALL)
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
# A choice of a group of configs/ that is also the value of a setting.
_GROUPS = {"pipeline": "pipeline.engine"}


def typed_settings(overrides: Sequence[str]) -> Callable[[str], Any]:
    """Return a function from a setting's key to its value: text, a list of texts, or None.

    For the parent of typed keys, such as `model.kwargs`, the value is a dict.
    """
    typed: dict[str, Any] = {}
    for override in overrides:
        if match := _OVERRIDE.fullmatch(override):
            key, text = match[1].replace("/", "."), match[2]
            items = _LIST.fullmatch(text)
            parts = items[1].split(",") if items else ()
            typed[_GROUPS.get(key, key)] = [*map(_plain, parts)] if items else _plain(text)

    def value(key: str) -> Any:
        if key in typed:
            return typed[key]
        start = f"{key}."
        below = {name: typed[name] for name in typed if name.startswith(start)}
        return {name.removeprefix(start): each for name, each in below.items()} or None

    return value


def _plain(text: str) -> str:
    return text.strip().strip("'\"")
