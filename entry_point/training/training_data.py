"""Both splits: their images, and the loaders of this rank's batches."""

from __future__ import annotations

from entry_point.config import TrainConfig
from entry_point.data import DataError, Loader, Source, build_loader, open_source
from entry_point.run_folder import RunFolder
from entry_point.training.devices import Devices


class TrainingData:
    """Open until `close`.

    Raises:
        DataError: the splits cannot be read, or have different classes.
    """

    def __init__(self, config: TrainConfig, run: RunFolder, devices: Devices) -> None:
        self._config, self._devices = config, devices
        self.train = open_source(config.data, "train", run.channels)
        self.val = open_source(config.data, "val", run.channels)
        self.classes = list(self.train.classes)
        if self.classes != list(self.val.classes):
            raise DataError(f"train has the classes {self.classes}, val {list(self.val.classes)}")
        self.train_loader = self._loader(self.train, "train")
        self.val_loader = self._loader(self.val, "val")

    def _loader(self, source: Source, split: str) -> Loader:
        trainer = self._config.trainer
        return build_loader(
            source,
            self._config.data,
            self._config.pipeline,
            split=split,
            batch_size=trainer.batch_size // self._devices.world_size,
            seed=trainer.seed,
            rank=self._devices.rank,
            world_size=self._devices.world_size,
            pin_memory=self._devices.device.type == "cuda",
            profile=trainer.profile and split == "train",
        )

    def close(self) -> None:
        """End the loaders' threads and processes."""
        self.train_loader.close()
        self.val_loader.close()
