"""Prediction: a list of image files of any size and format, each center-cropped once, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.decode.batch_maker import MakeImages
from entry_point.data.loader import Loader, build_loader
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.file_list import FileSource


def build_file_loader(
    paths: Sequence[Path], image_size: int, resize: int, pipeline: PipelineConfig, batch_size: int
) -> Loader:
    """Batches of files, resized to a shorter side of `resize` and center-cropped to `image_size`.

    `Batch.indices` are positions in `paths`. Files that are not a complete image are left out and
    listed in `Batch.damage`. The operator decodes JPEGs; Pillow decodes the JPEGs that the operator
    refuses, and all other formats.
    """
    data = DataConfig(image_size=image_size, resize=resize, on_error="skip", max_bad_fraction=1.0)
    spec = LoaderSpec(data, pipeline, "val", batch_size, seed=0)
    return build_loader(FileSource(paths), spec, _image_maker(pipeline.engine))


def _image_maker(engine: str) -> MakeImages:
    if engine == "dali":
        raise ConfigError("pipeline.engine", engine, "decodes only JPEGs; use pipeline=threads")
    if engine == "pillow":
        from entry_point.data.decode.pillow_images import pillow_images

        return pillow_images
    import custom_op

    custom_op.load()
    from entry_point.data.decode.any_images import any_images

    return any_images
