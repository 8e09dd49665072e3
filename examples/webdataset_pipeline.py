"""A WebDataset pipeline that decodes a batch in one call.

    python -m examples.webdataset_pipeline PACKED/train

Reads shards with members KEY.jpg and KEY.json, the name of the class, and the list of classes in
dataset.json, such as `make dataset` writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from torch import Tensor

from examples.random_crop import decode_random_crops


def collate(
    samples: list[tuple[bytes, bytes]], numbers: Mapping[str, int]
) -> tuple[Tensor, Tensor]:
    """Turn the members of N samples into uint8 `(N, 3, 224, 224)` images and int64 labels.

    `numbers` are those of the classes by name.
    """
    jpegs = [torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy()) for jpeg, _ in samples]
    labels = torch.tensor([numbers[json.loads(label)] for _, label in samples])
    return decode_random_crops(jpegs, 224), labels


def train_loader(
    shards: list[str], classes: list[str], batch_size: int = 32, workers: int = 2
) -> wds.WebLoader:
    """Return a loader of uint8 batches, which the device normalizes faster than the host."""
    numbers = {name: number for number, name in enumerate(classes)}
    dataset = (
        # Without `decode` the members stay bytes.
        wds.WebDataset(shards, shardshuffle=len(shards), nodesplitter=wds.split_by_node)
        .shuffle(1000)
        .to_tuple("jpg", "json")
        .batched(batch_size, collation_fn=partial(collate, numbers=numbers))
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=min(workers, len(shards)))


def main(folder: str) -> None:
    shards = sorted(map(str, Path(folder).glob("*.tar")))
    description = json.loads((Path(folder).parent / "dataset.json").read_text())
    for images, labels in train_loader(shards, description["classes"]):
        sys.stdout.write(f"{tuple(images.shape)} {images.dtype} {tuple(labels.shape)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
