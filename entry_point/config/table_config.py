"""Typed settings of a table: of labels, for training and packing, or of paths, for prediction."""

from __future__ import annotations

from dataclasses import dataclass, field

from entry_point.config.config_errors import ConfigError, shown
from entry_point.config.knob import check_knobs, knob


@dataclass
class PathsConfig:
    """The column of paths of a table (CSV, TSV, Parquet, JSON lines)."""

    path: str | None = None
    """Column of the images' paths. null: `path`, `file`, `file_name`, `filename`, `image`,
    `image_path` or `source-ref`."""
    prefix: str | None = None
    """Start of the paths that stands for the folder of images, such as `s3://bucket/photos/`."""


@dataclass
class TableConfig(PathsConfig):
    """Columns of a table of labels (CSV, TSV, Parquet, JSON lines)."""

    labels: list[str] = field(default_factory=list)
    """Columns of the labels. []: `label`, `labels` or `class`, or the attribute that SageMaker's
    augmented manifest describes."""
    split: str | None = None
    """Column that holds `train` or `val`. null: `split`, if there is one. Rows with another value
    are not used."""
    kind: str | None = knob(None, choices=("class", "labels", "numbers"))
    """What the labels are. `class`: one name per image. `labels`: any number of names, as a list or
    between `separator`s; or several columns that hold 0 or 1. `numbers`: one or more columns. null:
    what `task.name` needs, or else what the first rows look like; whole numbers are classes."""
    separator: str = "|"
    """Between the names in a cell of text that holds several labels."""

    def changed(self, group: str) -> list[str]:
        """The settings that are not the defaults, as typed: `table.path=file`."""
        values, defaults = vars(self), vars(TableConfig())
        changes = {key: value for key, value in values.items() if value != defaults[key]}
        return [f"{group}.{key}={shown(value)}" for key, value in changes.items()]

    def check(self, group: str) -> None:
        """Raise ConfigError for a setting of `group` that is not allowed."""
        check_knobs(self, group)
        if not self.separator:
            raise ConfigError(f"{group}.separator", repr(self.separator), "must not be empty")
        if self.kind == "class" and len(self.labels) > 1:
            must = f"{group}.kind=class takes one column; use kind=labels or kind=numbers"
            raise ConfigError(f"{group}.labels", self.labels, must)
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"{group}.labels", self.labels, "names a column twice")
