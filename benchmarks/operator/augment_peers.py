"""Other libraries' augmentation of random crops. Those that are not installed are left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg

from benchmarks.operator.op_resized import (
    SIZE,
    Work,
    cut_by_pillow,
    cut_by_torchvision,
    dali_crops,
    has_dali,
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
    if not importlib.util.find_spec("kornia"):
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
    if word != "simclr" or not importlib.util.find_spec("albumentations"):
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
    if word == "simclr" or not has_dali():
        return {}
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    count = len(boxes)

    @pipeline_def(
        batch_size=count, num_threads=1, device_id=None, exec_async=False, exec_pipelined=False,
        prefetch_queue_depth=1, enable_conditionals=True,
    )  # fmt: skip
    def pipeline() -> object:
        images = fn.flip(dali_crops(files, count), horizontal=fn.random.coin_flip())
        shape = [SIZE, SIZE]
        if word == "trivial":
            return trivial_augment.trivial_augment_wide(images, shape=shape)
        return rand_augment.rand_augment(images, n=2, m=9, shape=shape)

    built = pipeline()
    built.build()
    return {"DALI (CPU)": built.run}
