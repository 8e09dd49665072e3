"""Part N of M of the work: the share that one run packs or predicts, and its file names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from entry_point.config.config_errors import ConfigError
from entry_point.job.processing import ProcessingJob


@dataclass(frozen=True)
class Part:
    """Part `number` of `count`, counted from 1. Raises ValueError for other numbers."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count <= 9999:
            raise ValueError(f"{self}: must be from 1 to at most 9999")

    @classmethod
    def parse(cls, text: str) -> Part:
        """Returns the part that `part=N/M` names; raises ConfigError."""
        try:
            number, count = map(int, text.split("/"))
            return cls(number, count)
        except ValueError as error:
            message = "must be N/M with N from 1 to M, as in part=3/16"
            raise ConfigError("part", text, message) from error

    def __str__(self) -> str:
        return f"part {self.number} of {self.count}"

    @property
    def padded(self) -> str:
        """The number with leading zeros, so that sorted names are in the order of the parts."""
        return f"{self.number:0{len(str(self.count))}}"

    def name(self, stem: str, suffix: str) -> str:
        """Returns the part's file name: `dataset.json` for a single part, `dataset-2-of-4.json` for
        one of several."""
        return f"{stem}-{self.padded}-of-{self.count}{suffix}" if self.count > 1 else stem + suffix

    @property
    def description(self) -> str:
        return self.name("dataset", ".json")

    @property
    def index(self) -> str:
        """The part's index file in the folder of each split."""
        return self.name("index", ".safetensors")

    @property
    def predictions(self) -> str:
        """The part's file of predictions, numbered even if it is the only part."""
        return f"part-{self.padded}-of-{self.count}.parquet"

    def of(self, images: int) -> range:
        """Returns the numbers of the part's images; all parts together have each image once."""
        first, end = ((at * images) // self.count for at in (self.number - 1, self.number))
        return range(first, end)


def path_of_run(key: str, value: str | None, default: Path | None) -> Path:
    """Returns the path in a setting, else the job's `default`. Raises ConfigError without both."""
    if value is None and default is None:
        raise ConfigError(key, message=f"has no value; add {key}=PATH")
    return Path(value or default or "")


def part_of_run(chosen: str | None, job: ProcessingJob | None, source: Path) -> tuple[Part, bool]:
    """Returns the part that a run works on, and whether `source` holds only the files of this part.

    The part is the `chosen` one, else that of this host in a job, else the only one.
    """
    if chosen is not None:
        return Part.parse(chosen), False
    if job is None:
        return Part(), False
    return Part(job.hosts.rank + 1, job.hosts.count), job.shards_input(source)


def _checked(text: str) -> str:
    Part.parse(text)
    return text


PartText = Annotated[str, AfterValidator(_checked)]
"""The setting `part=N/M`."""
