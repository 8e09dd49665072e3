"""Images of any format: Pillow decodes what another decoder refuses."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.made_images import MadeImages, MakeImages
from entry_point.data.decode.pillow_images import decode_files
from entry_point.data.decode.read_batch import read_files
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source


@dataclass(frozen=True)
class PillowFallback:
    """Reads what `make_images` refuses, which takes only JPEGs, again and decodes it with Pillow.

    One view of each image.
    """

    make_images: MakeImages

    def __call__(
        self, source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
    ) -> MadeImages:
        """See MakeImages."""
        made = self.make_images(source, planner, epoch, indices, allocate)
        if not made.damage:
            return made
        refused = sorted(made.damage)
        files, unreadable = read_files(source, indices[refused])
        images, failed = decode_files(files, planner, epoch, indices[refused], allocate)
        made.images[torch.tensor(refused)] = images.to(made.images.device)
        reasons = failed | unreadable
        return MadeImages(made.images, {refused[i]: reason for i, reason in reasons.items()})

    def close(self) -> None:
        """End the threads of an image maker that has its own."""
        if hasattr(self.make_images, "close"):
            self.make_images.close()
