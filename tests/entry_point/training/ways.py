"""The combinations of pipeline engine and data source that interrupted runs are tested on."""

from pathlib import Path

from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.pack import pack
from tests.masked_shapes import write_shapes

ENGINES = ("pillow", "workers", "threads")
SOURCES = {
    "folder": (),
    "balanced folder": ("data.balance=classes",),
    "folder of many formats": (),
    "shards": ("data.format=shards",),
    "stream": ("data.format=shards", "data.access=stream"),
}
"""Overrides by data source: a folder of photographs, or packed ones."""
OTHERS = {
    "tars": ("data.format=webdataset",),
    "parquet": ("data.format=parquet",),
    "masks": (
        *("data.format=masks", "data.crop=squash", "task.name=segmentation"),
        *("model.name=tests.own_models.pixel_net", "augment.name=color_jitter"),
        *("augment.erase=0", "optim.mixup_alpha=0"),
    ),
}
"""The same by what `write_others` writes."""
WAYS = [
    ("threads", "balanced folder"),
    ("threads", "folder of many formats"),
    *(("threads", source) for source in OTHERS),
    ("threads", "stream"),
    ("workers", "shards"),
]


def pack_photos(folder: Path, output: Path) -> Path:
    """Pack a folder of photographs into several shards."""
    pack(folder, output, OptimizeConfig(shard_mb=0.125))
    return output


def write_others(source: str, folder: Path, output: Path) -> Path:
    """Write a folder of photographs as tar or Parquet files of others; or shapes with masks."""
    if source == "masks":
        return write_shapes(output)
    # Not above: a machine that only checks the GPU paths lacks their packages.
    if source == "tars":
        from tests.entry_point.data.sources.test_webdataset import write_tars

        return write_tars(folder, output)
    from tests.entry_point.data.sources.test_parquet import write_dataset

    return write_dataset(folder, output)
