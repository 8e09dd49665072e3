"""Typed settings of `optimize`."""

from __future__ import annotations

from dataclasses import dataclass, field

from entry_point.config.config_errors import ConfigError, check_choice, check_range


@dataclass
class OptimizeConfig:
    """All of `configs/optimize.yaml`."""

    source: str | None = None
    """Folder of source/<split>/<class>/ images; in a Processing job, null is its input folder."""
    output: str | None = None
    """Folder to make; in a Processing job, null is its output folder."""
    merge: list[str] = field(default_factory=list)
    """Instead of reading a source: finished datasets of disjoint images to unite in output."""
    output_format: str = "shards"
    """shards (tar files and an index) or folder (plain files in the ImageFolder layout)."""
    interval: int = 4
    """Wanted MCUs between restart markers; smaller decodes narrow crops faster, costs bytes."""
    max_side: int | None = None
    """Shrink images whose longer side is more pixels than this; null is lossless."""
    quality: int = 95
    """JPEG quality of images that are converted or shrunk; others keep theirs."""
    shard_mb: float = 256.0
    """Megabytes (10^6 bytes) of source files per shard."""
    workers: int | None = None
    """Threads; null means one per usable core."""
    seed: int = 0
    """Of the shuffle before packing."""
    classes: str | None = None
    """Text file of class names, one a line, for a part that does not see all classes."""
    part: int = 0
    """Number of this part in its shards' names; on Processing hosts it follows from the host."""

    def __post_init__(self) -> None:
        check_choice("output_format", self.output_format, ("shards", "folder"))
        check_range("interval", self.interval, 1, 65535)
        if self.max_side is not None:
            check_range("max_side", self.max_side, 16)
        check_range("quality", self.quality, 1, 100)
        check_range("shard_mb", self.shard_mb, above=0.0)
        if self.workers is not None:
            check_range("workers", self.workers, 1, 1024)
        check_range("seed", self.seed, 0, 2**63)
        check_range("part", self.part, 0, 9999)
        if self.merge and not self.output:
            raise ConfigError("output=null: merge needs the folder to make")
