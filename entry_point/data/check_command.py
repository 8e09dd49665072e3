"""The command that reads a whole dataset."""

from __future__ import annotations

from entry_point.config.data_config import DataConfig


def check_command(data: DataConfig) -> str:
    """How to list all damaged images at once."""
    arguments = [f"root={data.root or 'FOLDER'}", *data.table.changed("table")]
    arguments += [f"images={data.images}"] if data.images else []
    if data.index_root and data.format != "shards":
        arguments += [f"index_root={data.index_root}"]
    return f'`make check-dataset ARGS="{" ".join(arguments)}"` lists them all'
