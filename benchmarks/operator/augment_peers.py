"""Other libraries' augmentation of random crops. Those that are not installed are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg

from benchmarks import measure
from benchmarks.operator import op_resized
from benchmarks.operator.op_resized import (
    SIZE,
    Work,
    cut_by_pillow,
    cut_by_torchvision,
    opened_by_pillow,
)
from benchmarks.sample_photographs import tensor


def pillow_views(files: list[bytes], boxes: Tensor) -> Iterator[Image.Image]:
    """Yields the resized views of `boxes`, (images, views, 4); each image is decoded once."""
    for i, views in enumerate(boxes.tolist()):
        image = opened_by_pillow(files[i % len(files)])
        for view, box in enumerate(views):
            yield cut_by_pillow(image, box, (i + view) % 2 == 0)


def tensor_views(files: list[Tensor], boxes: Tensor) -> Iterator[Tensor]:
    """Yields the same by torchvision, uint8 (3, SIZE, SIZE)."""
    for i, views in enumerate(boxes.tolist()):
        image = decode_jpeg(files[i % len(files)])
        for view, box in enumerate(views):
            yield cut_by_torchvision(image, box, (i + view) % 2 == 0)


def peers(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """Returns the libraries that have the policy `word`, without erasing."""
    return {
        **kornia(word, files, boxes),
        **albumentations(word, files, boxes),
        **dali(word, files, boxes),
    }


def kornia(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """Floats, a whole batch at once; torchvision decodes and crops."""
    if not measure.installed("kornia"):
        return {}
    import kornia.augmentation as K
    from kornia.augmentation import auto

    policies: dict[str, Callable[[], torch.nn.Module]] = {
        "trivial": auto.TrivialAugment,
        "rand": lambda: auto.RandAugment(2, 9),
        "simclr": lambda: torch.nn.Sequential(
            K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            K.RandomGrayscale(p=0.2),
            K.RandomGaussianBlur((23, 23), (0.1, 2.0), p=0.5),
        ),
    }
    policy, tensors = policies[word](), [tensor(data) for data in files]
    return {"Kornia": lambda: policy(torch.stack(list(tensor_views(tensors, boxes))).float() / 255)}


def albumentations(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """OpenCV decodes and crops, with its area filter. It has no TrivialAugment or RandAugment."""
    if word != "simclr" or not measure.installed("albumentations"):
        return {}
    import albumentations as A
    import cv2

    cv2.setNumThreads(1)
    policy = A.Compose(
        [
            A.ColorJitter((0.2, 1.8), (0.2, 1.8), (0.2, 1.8), (-0.2, 0.2), p=0.8),
            A.ToGray(p=0.2),
            A.GaussianBlur(blur_limit=(23, 23), sigma_limit=(0.1, 2.0), p=0.5),
        ]
    )
    arrays = [np.frombuffer(data, np.uint8) for data in files]

    def work() -> None:
        for i, views in enumerate(boxes.tolist()):
            image = cv2.imdecode(arrays[i % len(files)], cv2.IMREAD_COLOR_RGB)
            assert image is not None
            for view, (top, left, height, width) in enumerate(views):
                crop = image[top : top + height, left : left + width]
                crop = cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
                policy(image=crop if (i + view) % 2 else cv2.flip(crop, 1))

    return {"Albumentations (OpenCV)": work}


def dali(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """On the CPU; no policy of SimCLR."""
    if word == "simclr" or not measure.installed("nvidia.dali"):
        return {}
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    def augment(images: Any) -> Any:
        if word == "trivial":
            return trivial_augment.trivial_augment_wide(images, shape=[SIZE, SIZE])
        return rand_augment.rand_augment(images, n=2, m=9, shape=[SIZE, SIZE])

    return op_resized.dali(files, len(boxes), augment)
