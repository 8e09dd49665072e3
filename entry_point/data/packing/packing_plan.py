"""What to pack into which shard: decided before the first image is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.listing import Listing
from entry_point.data.packing.scan_source import list_classes, list_left_out, list_splits
from entry_point.data.sources.dataset_description import VERSION


@dataclass(frozen=True)
class PackingPlan:
    """Everything that determines the output's bytes."""

    classes: list[str]
    listing: Listing
    fingerprint: str
    """Hash of the source files' list and the options."""
    left_out: list[str]
    part: int

    def shards(self) -> Iterator[tuple[str, int]]:
        """Split and number of each shard."""
        for split, shards in self.listing.shards.items():
            yield from ((split, number) for number in range(len(shards)))

    def shard_name(self, number: int) -> str:
        return f"shard-{self.part:02d}-{number:06d}.tar"


def make_plan(source: Path, listing: Listing, options: OptimizeConfig) -> PackingPlan:
    """List all files of `source` in `listing`. Raises DataError if they cannot be packed."""
    classes = list_classes(source, options.classes)
    for split in list_splits(source):
        listing.add(source, split, classes, all_classes=options.classes is None)
    relevant = asdict(options) | {"source": None, "output": None, "workers": None}
    content = json.dumps([VERSION, relevant, classes, listing.fingerprint])
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    return PackingPlan(classes, listing, fingerprint, list_left_out(source), options.part)
