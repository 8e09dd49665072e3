"""Training that is killed again and again ends with bit-identical weights and metrics.

`python -m benchmarks.training.train_interruptions [DEATHS]`: for every engine and data source, a
run is killed (SIGTERM and SIGKILL in turn, at random steps) and restarted until it has died DEATHS
times. Then it finishes and is compared with an undisturbed run.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from entry_point.job.program import ExitCode
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records, timeless
from tests.entry_point.training.ways import ENGINES, SOURCES, pack_photos
from tests.photographs import write_photo_folder

OVERRIDES = (
    "model.name=tests.own_models.tiny_net_with_state",
    "pipeline.num_workers=1",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=1",
    "trainer.evaluate_every_epochs=5",
    "optim.mixup_alpha=0.2",
    "optim.ema_decay=0.9",
)


def die_often(
    overrides: Sequence[str], deaths: int, folder: Path, data: Path, draw: random.Random
) -> bool:
    """Return whether the killed run ended like the undisturbed one."""
    epochs = deaths  # three steps each, so more steps than deaths
    overrides = [*OVERRIDES, *overrides, f"trainer.epochs={epochs}"]
    whole, torn = folder / "whole", folder / "torn"
    if forked.run(whole, data, overrides) != 0:
        raise RuntimeError((whole / "log").read_text())
    steps = sorted(draw.sample(range(1, 3 * epochs - 1), deaths))
    for number, step in enumerate(steps):
        how = (signal.SIGTERM, signal.SIGKILL)[number % 2]
        code = forked.run_until_step(torn, data, overrides, step, how)
        if code not in (ExitCode.STOPPED, -signal.SIGKILL):
            raise RuntimeError((torn / "log").read_text())
    if forked.run(torn, data, overrides) != 0:
        raise RuntimeError((torn / "log").read_text())
    one, other = (load_file(root / "model" / "model.safetensors") for root in (whole, torn))
    same_weights = all(torch.equal(one[key], other[key]) for key in one)
    return same_weights and timeless(read_records(whole)) == timeless(read_records(torn))


def main(deaths: int) -> int:
    """Print one line per engine and source; returns the exit code."""
    draw = random.Random(0)
    ways = [(engine, source) for engine in ENGINES for source in SOURCES]
    deaths_each = -(-deaths // len(ways))
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        photographs = write_photo_folder(Path(name) / "photographs")
        shards = pack_photos(photographs, Path(name) / "packed")
        for engine, source in ways:
            overrides = (f"pipeline={engine}", *SOURCES[source])
            data = photographs if "folder" in source else shards
            same = die_often(overrides, deaths_each, Path(name) / f"{engine}-{source}", data, draw)
            failed += not same
            verdict = "bit-identical" if same else "DIFFERENT"
            sys.stdout.write(f"{engine}, {source}: {deaths_each} deaths, result {verdict}\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
