"""`data.fast_color`: training samples a little different, validation as without it."""

from pathlib import Path

import pytest
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.train_config import load_train_config
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec


def images(root: Path, engine: str, split: str, fast_color: bool) -> torch.Tensor:
    config = DataConfig(root=str(root), image_size=64, resize=72, fast_color=fast_color)
    spec = LoaderSpec(config, PipelineConfig(engine=engine, num_workers=1), split, 12, seed=4)
    loader = build_loader(open_source(config, split, root), spec)
    try:
        return torch.cat([batch.images.clone() for batch in loader.epoch(0)]).int()
    finally:
        loader.close()


@pytest.mark.parametrize("engine", ["threads", "subprocess"])
def test_training_differs_by_a_fraction_of_a_level_and_validation_not(
    engine: str, photo_folder: Path
) -> None:
    exact, fast = (images(photo_folder, engine, "train", fast) for fast in (False, True))
    assert 0 < (exact - fast).abs().float().mean() < 0.5
    exact, fast = (images(photo_folder, engine, "val", fast) for fast in (False, True))
    assert torch.equal(exact, fast)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pipeline=workers"], "data.fast_color=true: needs pipeline=threads or subprocess, not w"),
        (["pipeline=dali"], "data.fast_color=true: needs pipeline=threads or subprocess, not dali"),
        (["experiment=stall"], "data.fast_color=true: needs data.transform=imagenet"),
    ],
)
def test_what_cannot_do_it_is_an_error(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as found:
        load_train_config(["data.fast_color=true", *overrides])
    assert str(found.value).startswith(message)
