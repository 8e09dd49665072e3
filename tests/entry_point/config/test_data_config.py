from typing import Any

import pytest

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, DemoConfig, PipelineConfig

CLASSES = {"data": DataConfig, "data.kwargs": DemoConfig, "pipeline": PipelineConfig}


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        ("data", {"format": "floder"}, "data.format=floder: .*did you mean folder"),
        ("data", {"format": "demo"}, "data.root=null: data=demo needs a folder"),
        (
            "data",
            {"image_size": 0},
            "data.image_size=0: Input should be greater than or equal to 1",
        ),
        ("data", {"resize": 100}, "data.resize=100: must be at least data.image_size=224"),
        (
            "data",
            {"scale": [0.0, 1.0]},
            r"data.scale\[0\]=0.0: Input should be greater than 0",
        ),
        (
            "data",
            {"scale": [0.5, 1.5]},
            r"data.scale\[1\]=1.5: Input should be less than or equal to 1",
        ),
        (
            "data",
            {"scale": [0.5]},
            r"data.scale=\[0.5\]: List should have at least 2 items",
        ),
        (
            "data",
            {"ratio": [2.0, 1.0]},
            r"data.ratio=\[2.0,1.0\]: must be \[smallest,largest\]",
        ),
        ("data", {"hflip": float("nan")}, "data.hflip=nan: Input should be a finite number"),
        ("data", {"mean": [0.5]}, r"data.mean=\[0.5\]: List should have at least 3 items"),
        (
            "data",
            {"std": [0.1, 0.0, 0.1]},
            r"data.std\[1\]=0.0: Input should be greater than 0",
        ),
        (
            "data.kwargs",
            {"train_images": 3},
            "data.kwargs.train_images=3: Input should be greater than or equal to 10",
        ),
        ("pipeline", {"engine": "dalle"}, "pipeline.engine=dalle"),
        (
            "pipeline",
            {"num_workers": -1},
            "pipeline.num_workers=-1: Input should be greater than or equal to 0",
        ),
    ],
)
def test_a_bad_setting_is_named_with_its_value(
    group: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(values, CLASSES[group], group)
