"""Prediction: a list of image files of any size and format, each centre-cropped once, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.decode.batch_maker import BatchMaker, MakeImages
from entry_point.data.loader import Loader, start_loader
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.order import EpochPlan
from entry_point.data.sources.file_list import FileSource


def build_file_loader(
    paths: Sequence[Path], image_size: int, resize: int, pipeline: PipelineConfig, batch_size: int
) -> Loader:
    """Batches of the files whose shorter side becomes `resize` before a crop of `image_size`.

    `Batch.indices` are places in `paths`; files that are no whole image are left out and listed in
    `Batch.damage`. JPEGs are decoded by the operator, what it refuses and other formats by Pillow.
    """
    data = DataConfig(image_size=image_size, resize=resize, on_error="skip", max_bad_fraction=1.0)
    maker = BatchMaker(FileSource(paths), CropPlanner(data, False, seed=0), _maker(pipeline))
    plan = EpochPlan(len(paths), batch_size, seed=0, train=False)
    return start_loader(maker, plan, data, pipeline)


def _maker(pipeline: PipelineConfig) -> MakeImages:
    if pipeline.engine == "dali":
        raise ConfigError("pipeline.engine=dali: decodes JPEGs only; use pipeline.engine=threads")
    if pipeline.engine == "pillow":
        from entry_point.data.decode.pillow_images import pillow_images

        return pillow_images
    import custom_op

    custom_op.load()
    from entry_point.data.decode.any_images import any_images

    return any_images
