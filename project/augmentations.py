"""Your own augmentations: `augment.name=project.augmentations.Noise`."""

import torch


class Noise:
    """Adds noise of a random strength to each image of a batch, on the device."""

    def __init__(self, strength: float = 0.1) -> None:
        self.strength = strength

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        share = torch.rand(len(images), 1, 1, 1, device=images.device)
        return images + self.strength * share * torch.randn_like(images)


class Grain:
    """Adds noise to each image where it is decoded: `augment.per=sample`."""

    def __init__(self, most: int = 8) -> None:
        self.most = most

    def __call__(self, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randint(-self.most, self.most + 1, image.shape, generator=generator)
        return (image + noise).clamp(0, 255).to(torch.uint8)
