"""Which settings need a package that is only in an image built with it (`make image EXTRAS=...`).

Uses the standard library only, because `make docker-train` runs before anything is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
