"""The combinations of pipeline engine and data source that interrupted runs are tested on."""

from pathlib import Path

from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.pack import pack
from tests.entry_point.data.sources.test_parquet import write_dataset
from tests.entry_point.data.sources.test_webdataset import write_tars

ENGINES = ("pillow", "workers", "threads")
SOURCES = {
    "folder": (),
    "balanced folder": ("data.balance=classes",),
    "folder of many formats": (),
    "shards": ("data.format=shards",),
    "stream": ("data.format=shards", "data.access=stream"),
}
"""Overrides by data source: a folder of photographs, or packed ones."""
WRITTEN = {
    "tars": (write_tars, ("data.format=webdataset",)),
    "parquet": (write_dataset, ("data.format=parquet",)),
}
"""What writes others' files of the photographs, and the overrides."""
WAYS = [
    ("pillow", "folder"),
    ("threads", "folder"),
    ("threads", "balanced folder"),
    ("threads", "folder of many formats"),
    *(("threads", source) for source in WRITTEN),
    ("threads", "shards"),
    ("threads", "stream"),
    ("workers", "shards"),
]


def pack_photos(folder: Path, output: Path) -> Path:
    """Pack a folder of photographs into several shards."""
    pack(folder, output, OptimizeConfig(shard_mb=0.5))
    return output
