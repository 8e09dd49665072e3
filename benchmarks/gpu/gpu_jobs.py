"""The processes of the check on a GPU that are programs of its own.

`python -m benchmarks.gpu.gpu_jobs memory OVERRIDES` is the training program, whose last epoch
trains on batches kept in memory. That epoch says how fast training is if its input is free. The
idea is SPDL's headspace analysis. Only loading is free: batches still cross to the device.

With dali-gpu, dali-cpu, torchcodec or torchvision instead of `memory`, it is fed by that loader,
which reads the plain files of `data.root`. Validation has this template's loader.

`python -m benchmarks.gpu.gpu_jobs serving cuda|cpu` prints the server's speed as JSON, and what
many clients get done of what one does. That its answers are those of the CPU is in the tests marked
`gpu`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from entry_point import train
from entry_point.data.batch import Batch
from entry_point.training import trainer
from entry_point.training.input import TrainingInput, loader_spec

KEPT_BATCHES = 8


class LastEpochFromMemory(TrainingInput):
    def __init__(self, *of_trainer: Any) -> None:
        super().__init__(*of_trainer)
        self._in_memory: list[Batch] = []

    def train_batches(self, epoch: int, step: int) -> Iterator[Batch]:
        if epoch == self._config.trainer.epochs - 1:
            steps = self.train_loader.steps_per_epoch - step
            yield from islice(cycle(self._in_memory), steps)
            return
        for batch in super().train_batches(epoch, step):
            if len(self._in_memory) < KEPT_BATCHES:
                # The loader reuses its memory.
                copy = replace(batch, images=batch.images.clone(), labels=batch.labels.clone())
                pinned = batch.images.is_pinned()
                self._in_memory.append(copy.pin_memory() if pinned else copy)
            yield batch


class FedByPeer(TrainingInput):
    peer: ClassVar[str]

    def __init__(self, *of_trainer: Any) -> None:
        super().__init__(*of_trainer)
        root = Path(str(self._config.data.root))
        spec = loader_spec(self._config, self._devices, "train")
        steps = self.train_loader.steps_per_epoch
        if self.peer.startswith("dali"):
            from benchmarks.pipelines.dali_reader import DaliReader

            self.train_loader = DaliReader(root, spec, steps, on_gpu=self.peer == "dali-gpu")
        else:
            from benchmarks.pipelines.peers import PeerLoader

            name = {"torchvision": "imagefolder"}.get(self.peer, self.peer)
            self.train_loader = PeerLoader(name, root, spec, steps)


def train_on(feed: str, overrides: list[str]) -> int:
    """Trains as `train` does; returns its exit code."""
    FedByPeer.peer = feed
    source = LastEpochFromMemory if feed == "memory" else FedByPeer
    trainer.TrainingInput = source  # type: ignore[attr-defined,assignment]
    return train.main(overrides)


def serve(device: str) -> int:
    """Measures and prints; returns the exit code. A dry run has a model that costs nothing."""
    from benchmarks.sample_photographs import photographs
    from benchmarks.serving.serve_contenders import Clients, server, write_free_model, write_model
    from benchmarks.serving.serve_speed import CLIENTS, latency, write_bodies

    on_gpu, speeds, rates = device == "cuda", [], []
    write, precision, seconds = write_free_model, "fp32", 0.1
    if on_gpu:
        write, precision, seconds = write_model, "bf16", 5.0
    with TemporaryDirectory() as folder, closing(Clients()) as clients:
        write_bodies(bodies := Path(folder, "bodies"), photographs())
        with server(write(Path(folder, "run")), precision, on_gpu=on_gpu) as ready:
            for count in CLIENTS:
                sent = clients.send(ready, bodies / "jpg", count, seconds)
                p50, p99 = (f"p{p} {latency([sent], p):.3g} ms" for p in (50, 99))
                rates.append(sent.per_second)
                speeds.append(f"{count} clients: {sent.per_second:.4g}/s, {p50}, {p99}")
    model = "ResNet-18" if on_gpu else "a free model"
    speed = f"{model} in {precision}, {'; '.join(speeds)}"
    values = {"times one client": rates[-1] / rates[0], "speed": speed}
    sys.stdout.write(f"{json.dumps(values)}\n")
    return 0


if __name__ == "__main__":
    word, *others = sys.argv[1:]
    sys.exit(serve(*others) if word == "serving" else train_on(word, others))
