"""The engine `dali` compared with `threads`; most tests are skipped without DALI."""

import contextlib
import gc
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.data.errors import DataError
from entry_point.data.loader import Loader
from tests.commands import optimize
from tests.entry_point.data.engines.every_engine import NEEDS_DALI, Way
from tests.entry_point.data.loaders import loader_of

# In 255 levels: the largest mean difference, and the least share of pixels that differ by at most
# the third number.
TOLERANCES = {"cpu": (0.25, 0.985, 1), "cuda": (1.0, 0.95, 3)}
_TEM = b"\xff\x01"
"""A marker without content: valid JPEG, ignored by libjpeg, unknown to DALI's parser."""
DEVICES = (
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
)


def _loader(
    root: Path, engine: Way, split: str = "train", device: str = "cpu", **data: Any
) -> Loader:
    data = {"image_size": 96, "resize": 112, **data}
    spec = {"seed": 3, "device": torch.device(device)}
    return loader_of(root, engine, split, workers=2, batch_size=10, spec=spec, **data)


@NEEDS_DALI
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("format", ["folder", "shards"])
@pytest.mark.parametrize("device", DEVICES)
def test_dali_gives_the_samples_of_threads_within_its_rounding(
    photo_folder: Path, tmp_path: Path, split: str, format: str, device: str
) -> None:
    mean, share, near = TOLERANCES[device]
    root = photo_folder
    if format == "shards":
        root = tmp_path / "packed"
        assert optimize([f"source={photo_folder}", f"output={root}", "shard_mb=0.08"]) == 0
    threads = _loader(root, "threads", split, format=format)
    dali = _loader(root, "dali", split, device, format=format)
    expected, found = list(threads.epoch(1)), list(dali.epoch(1))
    assert len(expected) == len(found) > 0
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a.indices, b.indices) and torch.equal(a.labels, b.labels)
        assert b.images.dtype == torch.uint8 and b.images.shape == a.images.shape
        assert b.images.is_contiguous(memory_format=torch.channels_last)
        assert b.images.device.type == device
        levels = (a.images.int() - b.images.cpu().int()).abs()
        assert levels.float().mean() <= mean and levels.max() <= 32
        assert (levels <= near).float().mean() >= share
    rest = list(dali.epoch(1, start_step=1))
    assert [b.indices.tolist() for b in rest] == [b.indices.tolist() for b in found[1:]]
    assert all(torch.equal(a.images, b.images) for a, b in zip(found[1:], rest, strict=True))
    threads.close()
    dali.close()


@NEEDS_DALI
@pytest.mark.parametrize("device", DEVICES)
def test_a_file_that_only_dali_refuses_is_damage(photos: Path, device: str) -> None:
    files = sorted((photos / "val").glob("*/*.jpg"))
    for odd in (files[3], files[20]):
        jpeg = odd.read_bytes()
        odd.write_bytes(jpeg[:2] + _TEM + jpeg[2:])
    files[4].write_bytes(b"not a picture at all" * 100)  # in the batch of the first odd one
    settings: dict[str, Any] = {"max_bad_fraction": 1.0}
    threads, dali = (
        _loader(photos, engine, "val", device=device, **settings) for engine in ("threads", "dali")
    )
    expected, found = (
        {damage.key: damage.reason for batch in loader.epoch(0) for damage in batch.damage}
        for loader in (threads, dali)
    )
    assert list(expected) == [str(files[4])]
    why = found.pop(str(files[3]))
    assert re.fullmatch("DALI refuses it: .*nvImageCodec.*", why)
    assert found == {str(files[20]): why} | expected
    threads.close()
    dali.close()
    files[4].unlink()
    strict = _loader(photos, "dali", "val", device=device)
    with pytest.raises(DataError, match=f"{files[3]}: DALI refuses it: ."):
        list(strict.epoch(0))
    strict.close()


@NEEDS_DALI
@pytest.mark.parametrize("most", [0, 1])
def test_an_error_not_caused_by_a_file_is_not_damage(
    photo_folder: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Both if every file alone fails too, and if only a batch of files fails."""
    from entry_point.data.decode import dali

    pipeline = dali._pipeline

    def out_of_memory(batch_size: int, *settings: Any) -> Any:
        if batch_size > most:
            raise RuntimeError("CUDA out of memory")
        return pipeline(batch_size, *settings)

    monkeypatch.setattr(dali, "_pipeline", out_of_memory)
    loader = _loader(photo_folder, "dali", max_bad_fraction=1.0)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        list(loader.epoch(0))
    loader.close()


@NEEDS_DALI
@pytest.mark.parametrize("device", DEVICES)
def test_dali_threads_end_with_the_loader_and_with_a_larger_batch(
    photo_folder: Path, device: str
) -> None:
    before = _dali_threads()
    gc.disable()  # ending them must not depend on the collector
    try:
        loader = _loader(photo_folder, "dali", "val", device=device)
        (last,) = list(loader.epoch(0, start_step=2))
        few = len(_dali_threads() - before)
        first = next(loader.epoch(0))
        assert len(last.images) < len(first.images)
        assert len(_dali_threads() - before) == few > 0
        loader.close()
        assert _dali_threads() <= before
    finally:
        gc.enable()


def _dali_threads() -> set[str]:
    names = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            names[thread.name] = (thread / "comm").read_text()
    return {thread for thread, name in names.items() if "DALI" in name}


def test_without_dali_the_error_says_how_to_install_it(
    photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.delitem(sys.modules, "entry_point.data.decode.dali", raising=False)
    how = r"pipeline.engine=dali: .*make setup EXTRAS=dali.*EXTRAS=dali"
    with pytest.raises(ConfigError, match=how):
        _loader(photo_folder, "dali")
