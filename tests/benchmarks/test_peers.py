"""The loaders of other libraries, as contenders of the benchmark of the pipelines."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.pipelines.peers import PEERS, PeerLoader
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec

STEPS = 4


def _four_batches(loader: Loader) -> list[Batch]:
    batches = list(loader.epoch(0))
    loader.close()
    assert len(batches) == STEPS
    return batches


def _colors(batches: list[Batch]) -> tuple[Tensor, Tensor]:
    """Each image's mean color and its class."""
    means = torch.cat([batch.images.float().mean((2, 3)) for batch in batches])
    return means, torch.cat([batch.labels for batch in batches])


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_yields_batches_like_ours_of_the_same_photographs(
    name: str, photo_folder: Path, tmp_path: Path
) -> None:
    # Crops are whole photographs.
    data = DataConfig(root=str(photo_folder), image_size=32, scale=[1, 1], ratio=[0.01, 100])
    spec = LoaderSpec(data, PipelineConfig("threads", num_workers=2), "train", 12, seed=0)
    ours = _four_batches(build_loader(open_source(data, "train", Path()), spec))
    PEERS[name].write(photo_folder, tmp_path / "written")
    theirs = _four_batches(PeerLoader(name, tmp_path / "written", spec, STEPS))
    for our, their in zip(ours, theirs, strict=True):
        assert their.images.shape == our.images.shape and their.images.dtype == our.images.dtype
        assert their.labels.shape == our.labels.shape and their.labels.dtype == our.labels.dtype
    (our_colors, our_classes), (colors, classes) = _colors(ours), _colors(theirs)
    apart = (colors[:, None] - our_colors).abs().amax(2)
    apart[classes[:, None] != our_classes] = 255.0
    nearest = apart.min(1)
    assert nearest.values.max() < 2.0  # of 255, each image has one of ours, of its class
    assert len(nearest.indices.unique()) > 20  # 48 draws of 48 photographs, or 48 of them
