"""Your own augmentations: `augment.name=project.augmentations.Noise`."""

import torch


class Noise:
    """Adds noise of a random strength to each image."""

    def __init__(self, strength: float = 0.1) -> None:
        self.strength = strength

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        share = torch.rand(len(images), 1, 1, 1, device=images.device)
        return images + self.strength * share * torch.randn_like(images)
