"""Prediction: a list of image files of any size and format, each center-cropped once, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import custom_op
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.decode.mixed_formats import mixed_format_images
from entry_point.data.loader import Loader, build_loader
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.unlabeled_files import UnlabeledFiles


def build_file_loader(
    paths: Sequence[Path], image_size: int, resize: int, pipeline: PipelineConfig, batch_size: int
) -> Loader:
    """Batches of files, resized to a shorter side of `resize` and center-cropped to `image_size`.

    `Batch.indices` are positions in `paths`. Files that are not a complete image are left out and
    listed in `Batch.damage`. The operator decodes JPEGs; Pillow decodes the JPEGs that the operator
    refuses, and all other formats.
    """
    if pipeline.engine == "dali":
        raise ConfigError("pipeline.engine", "dali", "decodes only JPEGs; use pipeline=threads")
    data = DataConfig(image_size=image_size, resize=resize, on_error="skip", max_bad_fraction=1.0)
    spec = LoaderSpec(data, pipeline, "val", batch_size, seed=0)
    if pipeline.engine == "pillow":
        return build_loader(UnlabeledFiles(paths), spec)
    custom_op.load()
    return build_loader(UnlabeledFiles(paths), spec, mixed_format_images)
