"""The loaders that people would use instead, each over its own format of the same photographs.

- ImageFolder and a DataLoader with torchvision's transforms, on plain files; the same with
  torchcodec's decoder
- WebDataset: tar files; resampled shards and a shuffle buffer of 1,000 images per worker
- LitData: the output of `optimize`; StreamingDataset and StreamingDataLoader
- MosaicML Streaming: MDS shards; StreamingDataset and torch's DataLoader
- TurboLoader: a tar file; its fused C++ pass in threads of its own, as many as there are cores

Where their documentation leaves a choice, they have the faster one: all others decode with
torchvision to uint8 tensors, not to Pillow's images, and the training process normalizes batches,
not the workers. TurboLoader normalizes itself. It antialiases, as the others do.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, default_collate
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image, decode_jpeg
from torchvision.transforms import v2

from entry_point.data.batch import Batch
from entry_point.data.loader import Loader
from entry_point.data.loader_spec import AHEAD, LoaderSpec

PER_SHARD = 64
SHUFFLED = 1000
"""Images in WebDataset's shuffle buffer, as in its documentation."""
PASSES = 100
"""Passes over the images per epoch of a peer: the pauses between epochs are not measured."""
TURBOLOADER = "turboloader"
COPIES = 8
"""Copies of each image in TurboLoader's tar file, which has no such passes."""

Batches = Iterable[list[Tensor]]
"""An epoch: images, uint8 (N, 3, image_size, image_size), and their classes, int64 (N,).
TurboLoader's images are normalized float32."""


@dataclass(frozen=True)
class Peer:
    module: str
    """Must be installed."""
    write: Callable[[Path, Path], None]
    """(folder with train/<class>/*.jpg, output) -> the peer's format of the train split."""
    batches: Callable[[Path, LoaderSpec], Batches]
    """(output, spec) -> what is iterated once per epoch."""


class PeerLoader(Loader):
    """A Loader of a peer's batches, whose image numbers are all 0."""

    def __init__(self, name: str, root: Path, spec: LoaderSpec, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        self._batches = chain.from_iterable(repeat(PEERS[name].batches(root, spec)))

    def epoch(self, _epoch: int, start_step: int = 0) -> Iterator[Batch]:
        for _ in range(start_step, self.steps_per_epoch):
            images, labels = next(self._batches)
            yield Batch(images, labels, torch.zeros_like(labels))

    def close(self) -> None:
        """End the worker processes."""
        del self._batches
        gc.collect()  # LitData's loader is in a reference cycle


def _link(files: Path, output: Path) -> None:
    output.symlink_to(files.resolve())


def _image_folder(read: Callable[[str], Tensor], root: Path, spec: LoaderSpec) -> Batches:
    dataset = ImageFolder(str(root / "train"), _transform(spec), loader=read)
    sampler = RandomSampler(dataset, num_samples=PASSES * len(dataset))
    return DataLoader(dataset, spec.batch_size, sampler=sampler, drop_last=True, **_workers(spec))


def _write_webdataset(files: Path, output: Path) -> None:
    import webdataset

    output.mkdir()
    pattern = str(output / "%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=PER_SHARD, verbose=0) as writer:
        for number, (file, label) in enumerate(_samples(files)):
            writer.write({"__key__": f"{number:06d}", "jpg": file.read_bytes(), "cls": label})


def _webdataset(root: Path, spec: LoaderSpec) -> Batches:
    import webdataset

    urls = sorted(str(shard) for shard in root.glob("*.tar"))
    dataset = (
        # Endless: each worker draws shards with replacement.
        webdataset.WebDataset(urls, resampled=True, shardshuffle=False)
        .shuffle(SHUFFLED, initial=SHUFFLED)
        .to_tuple("jpg", "cls")
        .map_tuple(partial(_decoded, _transform(spec)), int)
        .batched(spec.batch_size, collation_fn=default_collate)
    )
    return webdataset.WebLoader(dataset, batch_size=None, **_workers(spec))


def _write_litdata(files: Path, output: Path) -> None:
    import litdata

    before = multiprocessing.get_start_method(allow_none=True)
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    samples = [(str(file), label) for file, label in _samples(files)]
    litdata.optimize(
        _litdata_sample, samples, str(output), chunk_size=PER_SHARD, num_workers=1, verbose=False
    )
    # optimize() has changed both for the whole process; its handler of Ctrl-C ends it at once.
    multiprocessing.set_start_method(before, force=True)
    signal.signal(signal.SIGINT, on_ctrl_c)


def _litdata_sample(sample: tuple[str, int]) -> dict[str, Any]:
    import litdata

    return {"image": litdata.Jpeg(path=sample[0]), "class": sample[1]}


def _litdata(root: Path, spec: LoaderSpec) -> Batches:
    import litdata

    dataset = litdata.StreamingDataset(
        str(root),
        shuffle=True,
        drop_last=True,
        subsample=float(PASSES),
        transform=partial(_litdata_transform, _transform(spec)),
    )
    return litdata.StreamingDataLoader(dataset, batch_size=spec.batch_size, **_workers(spec))


def _litdata_transform(transform: v2.Transform, sample: dict[str, Any]) -> tuple[Tensor, int]:
    return transform(sample["image"]), sample["class"]


def _write_mds(files: Path, output: Path) -> None:
    from streaming import MDSWriter

    columns, size = {"image": "bytes", "class": "int"}, 1 << 23
    with MDSWriter(out=str(output), columns=columns, size_limit=size) as writer:
        for file, label in _samples(files):
            writer.write({"image": file.read_bytes(), "class": label})


def _mds(root: Path, spec: LoaderSpec) -> Batches:
    from streaming import Stream, StreamingDataset

    streams = [Stream(local=str(root), repeat=PASSES)]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=spec.batch_size)
    collate = partial(_mds_batch, _transform(spec))
    return DataLoader(
        dataset, spec.batch_size, drop_last=True, collate_fn=collate, **_workers(spec)
    )


def _mds_batch(transform: v2.Transform, samples: list[dict[str, Any]]) -> list[Tensor]:
    return default_collate([(_decoded(transform, one["image"]), one["class"]) for one in samples])


def _write_turboloader(files: Path, output: Path) -> None:
    """Its samples have no labels: they lie beside the tar file, by the image's number in it."""
    output.mkdir()
    samples = COPIES * _samples(files)
    with tarfile.open(output / "images.tar", "w") as tar:
        for number, (file, _) in enumerate(samples):
            member = tarfile.TarInfo(f"{number:06d}.jpg")  # add() would make links of copies
            member.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(member, content)
    torch.save(torch.tensor([label for _, label in samples]), output / "labels.pt")


def _turboloader(root: Path, spec: LoaderSpec) -> Batches:
    import turboloader

    labels = torch.load(root / "labels.pt")
    loader = turboloader.DataLoader(
        str(root / "images.tar"),
        spec.batch_size,
        shuffle=True,
        transform=turboloader.ImageNetNormalize(),
        image_size=spec.data.image_size,
        output_format="pytorch",
        drop_last=True,
        antialias=True,
        pin_memory=spec.device.type == "cuda",
        train_aug=min(spec.data.scale) < 1,  # random crops, always of torchvision's default scale
        hflip_prob=spec.data.hflip,
    )
    for epoch in count():
        loader.set_epoch(epoch)
        for images, found in loader:
            yield [torch.as_tensor(images), labels[found["indices"]]]


def _samples(files: Path) -> list[tuple[Path, int]]:
    """Returns the photographs in random order, each with its class as ImageFolder numbers it."""
    found = [(Path(file), label) for file, label in ImageFolder(str(files / "train")).samples]
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    return [found[at] for at in order.tolist()]


def _transform(spec: LoaderSpec) -> v2.Transform:
    data = spec.data
    crop = v2.RandomResizedCrop(data.image_size, data.scale, data.ratio)
    return v2.Compose([crop, v2.RandomHorizontalFlip(data.hflip)])


def _read(file: str) -> Tensor:
    return decode_image(file, ImageReadMode.RGB)


def _read_with_torchcodec(file: str) -> Tensor:
    from torchcodec import decoders

    return decoders.decode_image(file)


def _decoded(transform: v2.Transform, jpeg: bytes) -> Tensor:
    pixels = decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), ImageReadMode.RGB)
    return transform(pixels)


def _workers(spec: LoaderSpec) -> dict[str, Any]:
    return {
        "num_workers": max(1, spec.pipeline.worker_count()),
        "prefetch_factor": AHEAD,
        "persistent_workers": True,
        "pin_memory": spec.device.type == "cuda",
    }


PEERS = {
    "imagefolder": Peer("torchvision", _link, partial(_image_folder, _read)),
    "torchcodec": Peer("torchcodec", _link, partial(_image_folder, _read_with_torchcodec)),
    "webdataset": Peer("webdataset", _write_webdataset, _webdataset),
    "litdata": Peer("litdata", _write_litdata, _litdata),
    "mosaicml": Peer("streaming", _write_mds, _mds),
    TURBOLOADER: Peer("turboloader", _write_turboloader, _turboloader),
}
