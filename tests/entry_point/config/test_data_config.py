from typing import Any

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, DemoConfig, PipelineConfig


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (DataConfig, {"format": "floder"}, "data.format=floder: .*did you mean folder"),
        (DataConfig, {"format": "demo"}, "data.root=null: data=demo needs a folder"),
        (DataConfig, {"image_size": 0}, "data.image_size=0: must be at least 1 and at most 4096"),
        (DataConfig, {"resize": 100}, "data.resize=100: must be at least data.image_size=224"),
        (
            DataConfig,
            {"scale": [0.0, 1.0]},
            r"data.scale=\[0.0,1.0\]: must be 2 numbers, each above 0",
        ),
        (
            DataConfig,
            {"scale": [0.5, 1.5]},
            r"data.scale=\[0.5,1.5\]: must be 2 numbers, each above 0 and at most 1",
        ),
        (DataConfig, {"scale": [0.5]}, r"data.scale=\[0.5\]: must be 2 numbers"),
        (
            DataConfig,
            {"ratio": [2.0, 1.0]},
            r"data.ratio=\[2.0,1.0\]: must be \[smallest,largest\]",
        ),
        (DataConfig, {"hflip": float("nan")}, "data.hflip=nan: must be at least 0 and at most 1"),
        (DataConfig, {"mean": [0.5]}, r"data.mean=\[0.5\]: must be 3 numbers$"),
        (
            DataConfig,
            {"std": [0.1, 0.0, 0.1]},
            r"data.std=\[0.1,0.0,0.1\]: must be 3 numbers, each above 0",
        ),
        (DemoConfig, {"train_images": 3}, "data.demo.train_images=3: must be at least 10"),
        (PipelineConfig, {"engine": "dalle"}, "pipeline.engine=dalle"),
        (
            PipelineConfig,
            {"num_workers": -1},
            "pipeline.num_workers=-1: must be at least 0 and at most 512",
        ),
        (PipelineConfig, {"prefetch": 0}, "pipeline.prefetch=0: must be at least 1 and at most 64"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(
    kind: type, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**values)
