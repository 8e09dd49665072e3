"""Prediction: images of any size and format, each center-cropped once, in order."""

from __future__ import annotations

import torch

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.decode.pillow_fallback import PillowFallback
from entry_point.data.loader import Loader, build_loader, image_maker
from entry_point.data.loader_spec import CPU, LoaderSpec
from entry_point.data.plan.order import RangePlan
from entry_point.data.sources.unlabeled import Stretch


def build_prediction_loader(
    stretch: Stretch,
    image_size: int,
    resize: int,
    pipeline: PipelineConfig,
    batch_size: int,
    device: torch.device = CPU,
) -> Loader:
    """Batches of images, resized to a shorter side of `resize` and center-cropped to `image_size`.

    `Batch.indices` are numbers in the stretch's source. Images that are not complete are left out
    and listed in `Batch.damage`. The engine decodes JPEGs; Pillow decodes the JPEGs that the engine
    refuses, and all other formats.
    """
    data = DataConfig(image_size=image_size, resize=resize, on_error="skip", max_bad_fraction=1.0)
    spec = LoaderSpec(data, pipeline, "val", batch_size, seed=0, device=device)
    make_images = image_maker(spec)
    if pipeline.engine != "pillow":
        make_images = PillowFallback(make_images)
    plan = RangePlan(stretch.samples, batch_size)
    return build_loader(stretch.source, spec, make_images, plan)
