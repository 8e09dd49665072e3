"""Both splits: their images, and the loaders of this rank's batches."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import zip_longest

from entry_point.config.train_config import TrainConfig
from entry_point.contract.run_folder import RunFolder
from entry_point.data.errors import DataError
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.source import Source
from entry_point.training.devices import Devices


class TrainingData:
    """Open until `close`.

    Raises:
        DataError: the splits cannot be read, or have different classes.
    """

    def __init__(self, config: TrainConfig, run: RunFolder, devices: Devices) -> None:
        self._config, self._devices = config, devices
        self._open = ExitStack()
        self.train = open_source(config.data, "train", run.channels)
        self.val = open_source(config.data, "val", run.channels)
        self.classes = list(self.train.classes)
        if (difference := _first_difference(self.classes, list(self.val.classes))) is not None:
            raise DataError(f"the splits have different classes: {difference}")
        self.train_loader = self._loader(self.train, "train")
        self.val_loader = self._loader(self.val, "val")

    def _loader(self, source: Source, split: str) -> Loader:
        trainer = self._config.trainer
        spec = LoaderSpec(
            self._config.data,
            self._config.pipeline,
            split,
            trainer.batch_size // self._devices.world_size,
            trainer.seed,
            self._devices.rank,
            self._devices.world_size,
            self._devices.device,
            profile=trainer.profile and split == "train",
        )
        loader = build_loader(source, spec)
        self._open.callback(loader.close)
        return loader

    def close(self) -> None:
        """End the loaders' threads and processes."""
        self._open.close()


def _first_difference(train: list[str], val: list[str]) -> str | None:
    for number, (one, other) in enumerate(zip_longest(train, val)):
        if one != other:
            return f"class {number} of {len(train)} is {one!r} in train, {other!r} in val"
    return None
