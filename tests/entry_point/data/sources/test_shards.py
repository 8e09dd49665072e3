"""Training from shards: the same samples with every engine and both values of data.access."""

import os
from pathlib import Path

import pytest
import torch

from entry_point.config.data_config import Access
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import map_file
from entry_point.data.sources.shards import ShardIndex
from tests.entry_point.data.engines.every_engine import DALI, ENGINES, Way
from tests.entry_point.data.loaders import epoch_of, indices_of, loader_of, source_of


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize(("access", "split"), [("map", "val"), ("stream", "train")])
def test_all_engines_read_the_same_samples_from_shards(
    packed: Path, access: Access, split: str, engine: Way
) -> None:
    reference = epoch_of(loader_of(packed, "pillow", split, access=access))
    batches = epoch_of(loader_of(packed, engine, split, access=access))
    most = 32 if engine == "dali" else 1  # levels; test_dali.py looks closer
    for a, b in zip(reference, batches, strict=True):
        assert torch.equal(a.indices, b.indices) and torch.equal(a.labels, b.labels)
        assert (a.images.int() - b.images.cpu().int()).abs().max() <= most


@pytest.mark.parametrize(
    ("engine", "access"),
    [("pillow", "map"), ("threads", "map"), ("threads", "stream"), ("workers", "stream")],
)
def test_resumed_epoch_starts_with_the_next_sample_and_decodes_none_before_it(
    shards: Path, engine: Way, access: Access
) -> None:
    """The samples before the resumed step are damaged by then."""
    loader = loader_of(shards, engine, access=access)
    whole = list(loader.epoch(3))
    _damage(shards, indices_of(whole[:2]))
    rest = epoch_of(loader, 3, start_step=2)
    assert len(rest) == len(whole) - 2 > 1
    for a, b in zip(whole[2:], rest, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.indices, b.indices)


def _damage(root: Path, indices: list[int]) -> None:
    """Overwrite the first bytes of these training samples."""
    index = ShardIndex(root, "train")
    for i in indices:
        with (root / "train" / index.shards[index.where.file_of[i]].file).open("r+b") as opened:
            opened.seek(int(index.where.offsets[i]))
            opened.write(bytes(20))


def test_mapped_shards_need_no_file_descriptors_and_are_unmapped_with_their_last_view(
    tmp_path: Path,
) -> None:
    file = tmp_path / os.fsdecode(b"mapped-\xff.bin")  # which no other test has mapped
    file.write_bytes(bytes(range(256)) * 40 + b"odd")
    opened = len([*Path("/proc/self/fd").iterdir()])
    maps = [map_file(file)[100:] for _ in range(50)]
    assert len([*Path("/proc/self/fd").iterdir()]) == opened and _maps(file) == 50
    assert all(each.numpy().tobytes() == file.read_bytes()[100:] for each in maps)
    del maps
    assert _maps(file) == 0


def _maps(file: Path) -> int:
    return Path("/proc/self/maps").read_bytes().count(os.fsencode(file))


@pytest.mark.parametrize("engine", ["pillow", "threads", DALI])
def test_error_for_a_damaged_sample_names_its_shard_and_key(shards: Path, engine: Way) -> None:
    _damage(shards, [0])
    index = ShardIndex(shards, "train")
    sample = rf"{index.shards[0].file}: {index[0]}"
    with pytest.raises(DataError, match=sample):
        epoch_of(loader_of(shards, engine, batch_size=1))


@pytest.mark.parametrize("access", ["map", "stream"])
def test_a_damaged_sample_is_replaced_and_named_by_its_key(shards: Path, access: Access) -> None:
    _damage(shards, [0])
    batches = epoch_of(loader_of(shards, access=access, max_bad_fraction=1.0))
    assert sorted(indices_of(batches)) == [1, *range(1, 48)]
    source = source_of(shards, access=access)
    assert [damage.key for batch in batches for damage in batch.damage] == [source.key(0)]
