"""What the comparisons with version 1.1.0 ask of the code: this tree's answers.

A change of the structure changes this file with it; version 1.1.0 has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from tests import commands
from tests.recorded.decided import today


class Split(NamedTuple):
    kind: str
    """`class`, `labels`, `numbers` or `targets`."""
    classes: list[str]
    keys: list[str]
    """Of each image: its path below the dataset's folder, or its name in a shard."""
    labels: list[Any]
    """A position in `classes`, or a row of numbers; zeros of kind `targets`."""


def opened(overrides: list[str]) -> dict[str, Split]:
    """The splits of the dataset that the overrides of a training name."""
    data, splits = _config(*overrides).data, {}
    for split in ("train", "val"):
        source = open_source(data, split, Path())
        keys = [source.key(i).rpartition(".tar: ")[2] for i in range(len(source))]
        keys = [key.removeprefix(f"{data.root}/") for key in keys]
        splits[split] = Split(source.kind, source.classes, keys, source.labels.tolist())
    return splits


def batches(
    overrides: list[str],
    split: str,
    batch_size: int,
    rank: int = 0,
    ranks: int = 1,
    starts: Sequence[tuple[int, int]] = ((0, 0),),
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices, labels and images (uint8) of each batch, from these epochs and steps on."""
    config = _config(*overrides)
    source = open_source(config.data, split, Path())
    spec = LoaderSpec(
        *(config.data, config.pipeline, split, batch_size, config.trainer.seed, rank, ranks),
        augment=config.augment,
    )
    loader = build_loader(source, spec)
    try:
        for epoch, step in starts:
            for batch in loader.epoch(epoch, step):
                yield batch.indices, batch.labels, batch.images
    finally:
        loader.close()


@cache
def _config(*overrides: str) -> TrainConfig:
    return load_train_config(today(overrides))[0]


def pack(*arguments: str) -> None:
    """Run `make dataset` in this process."""
    if code := commands.optimize(list(arguments)):
        raise SystemExit(code)
