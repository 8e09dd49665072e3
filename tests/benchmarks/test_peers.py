"""The loaders of other libraries, as contenders of the benchmark of the pipelines."""

import signal
from pathlib import Path

import pytest
import torch

from benchmarks.pipelines.compare import compare, references
from benchmarks.pipelines.peers import PEERS, TURBOLOADER, PeerLoader
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader_spec import LoaderSpec
from tests import forkserver

STEPS, SIZE = 4, 224


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_delivers_the_photographs_each_with_its_class_and_leaves_ctrl_c_as_it_was(
    name: str, photo_folder: Path, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    PEERS[name].write(photo_folder, tmp_path / "written")
    assert signal.getsignal(signal.SIGINT) is before
    given = (name, tmp_path / "written", 12, references(photo_folder, SIZE))
    if name == TURBOLOADER:  # whose threads would stay in this process, which other tests fork
        with forkserver.SERVER.Pool(1) as pool:
            found = pool.apply(compare, given)
    else:
        found = compare(*given)
    assert found.agrees and found.images == 12 * STEPS, found


def _turboloaded(written: Path) -> torch.Tensor:
    data, pipeline = DataConfig(image_size=SIZE), PipelineConfig("threads", num_workers=2)
    spec = LoaderSpec(data, pipeline, "train", 12, seed=0)
    batches = PeerLoader(TURBOLOADER, written, spec, STEPS).epoch(0)
    return torch.cat([batch.images for batch in batches])


def test_turboloader_yields_normalized_random_crops(photo_folder: Path, tmp_path: Path) -> None:
    PEERS[TURBOLOADER].write(photo_folder, tmp_path / "written")
    with forkserver.SERVER.Pool(1) as pool:
        images = pool.apply(_turboloaded, (tmp_path / "written",))
    assert images.shape == (12 * STEPS, 3, SIZE, SIZE) and images.dtype == torch.float32
    assert images.min() < -1 and images.max() > 1
    assert len({image.sum().item() for image in images}) > 40


def test_a_loader_with_wrong_labels_or_pixels_does_not_agree(
    photo_folder: Path, tmp_path: Path
) -> None:
    PEERS["imagefolder"].write(photo_folder, tmp_path / "written")
    images, labels = references(photo_folder, SIZE)
    brighter = (images.float() + 12).clamp(max=255).byte()
    for reference in ((images, labels.roll(12)), (brighter, labels)):
        assert not compare("imagefolder", tmp_path / "written", 12, reference).agrees
