"""What a tree does, as digests by the name of a comparison: samples of all layouts, and requests.

`python -m tests.recorded.observed FILE REQUESTS [WORD]` writes them into FILE, or those whose names
have WORD. `compare_commits` runs it in two trees.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout, suppress
from functools import cache, partial
from hashlib import sha256
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Generator, Tensor

from tests.recorded import driver
from tests.recorded.decided import today
from tests.recorded.layouts import LAYOUTS, write_layout

Observed = dict[str, Any]
"""What is compared, by name."""
Observe = Callable[[], Observed]
RANKS = ((0, 1), (0, 2), (1, 2))
"""Each a rank and the number of ranks."""
EVERY_ENGINE = (
    *("folders", "folders_valid_of_mixed_formats", "csv_of_classes", "json_lines_of_lists"),
    *("tars_of_classes", "parquet_of_hugging_face", "packed", "packed_stream", "mask_folders"),
    *("own_source", "demo"),
)
"""The layouts that are read by every engine; the others by `threads` alone."""
SMALL = ("data.image_size=48", "data.resize=56", "pipeline.num_workers=1")
WAYS: dict[str, tuple[str, ...]] = {
    "another seed": ("trainer.seed=7",),
    "repeats": ("data.repeats=3",),
    "balance": ("data.balance=classes",),
    "small crops": ("data.scale=[0.02,0.1]", "data.ratio=[0.5,2.0]", "data.hflip=0.2"),
    "progressive": ("data.progressive=[[0,32],[1,64]]",),
    "squash": ("data.crop=squash",),
    "views": ("data.views=2", "augment.name=simclr"),
    "trivial": ("augment.name=trivial",),
    "rand_timm": ("augment.name=rand_timm",),
    "color_jitter": ("augment.name=color_jitter",),
    "erase": ("augment.erase=0.5",),
    "own augmentation": ("augment.name=tests.recorded.observed.inverted", "augment.per=sample"),
}
"""Settings that change the samples of `folders`."""
ACCOUNT = "111122223333"
MINIMAL = {
    "job.role": f"arn:aws:iam::{ACCOUNT}:role/training",
    "job.output": "s3://my-bucket/runs",
    "target.image": f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/training@sha256:{'0' * 64}",
}
PROCESSING = {
    "packing": ("dataset", "source=s3://my-bucket/photos", "output=s3://my-bucket/packed"),
    "prediction": (
        *("predict", "s3://my-bucket/runs/JOB/output/model.tar.gz", "input=s3://my-bucket/new"),
        *("output_dir=s3://my-bucket/answers", "target.instance_count=4"),
    ),
}
"""Requests that the recorded ones lack."""


def inverted() -> Callable[[Tensor, Generator], Tensor]:
    """An augmentation of your own."""
    return lambda image, _generator: 255 - image


def engines(layout: str) -> list[str]:
    if layout not in EVERY_ENGINE:
        return ["threads"]
    with suppress(ModuleNotFoundError):  # no package nvidia
        if importlib.util.find_spec("nvidia.dali"):
            return ["threads", "workers", "pillow", "dali"]
    return ["threads", "workers", "pillow"]


def samples(folder: Path) -> Iterator[tuple[str, Observe]]:
    """Of each layout: all keys and labels; batches by engine and rank, and by setting."""
    for layout in LAYOUTS:
        written = cache(partial(write_layout, layout, folder / layout))
        yield f"layout: {layout}", partial(found, written, str(folder))
        for engine in engines(layout):
            for rank, ranks in RANKS:
                name = f"samples: {layout}, {engine}, rank {rank} of {ranks}"
                yield name, partial(batches, written, (f"pipeline={engine}",), rank, ranks)
        for way, settings in WAYS.items() if layout == "folders" else ():
            yield f"samples: {layout}, {way}", partial(batches, written, settings)


def found(written: Callable[[], list[str]], folder: str) -> Observed:
    splits = driver.opened(written())
    return {
        f"{name} of {word}": str(value).replace(folder, "")
        for word, split in splits.items()
        for name, value in split._asdict().items()
    }


def batches(
    written: Callable[[], list[str]], settings: tuple[str, ...], rank: int = 0, ranks: int = 1
) -> Observed:
    """Of an epoch, of another one from its second step on, and of validation."""
    overrides = [*written(), *SMALL, *settings]
    train = driver.batches(overrides, "train", 3, rank, ranks, starts=((0, 0), (1, 1)))
    both = chain(train, driver.batches(overrides, "val", 3, rank, ranks))
    made = [[part.numpy().tobytes() for part in batch] for batch in both]
    order, labels, images = zip(*made, strict=True)
    return {"order": digest(order), "labels": digest(labels), "pixels": digest(images)}


def digest(parts: Iterable[bytes]) -> str:
    whole = sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:16]


def requests(recorded: dict[str, Any]) -> Iterator[tuple[str, Observe]]:
    """What dry runs print, without what differs between two launches of the same job."""
    os.environ |= {"DRY_RUN": "1", "AWS_DEFAULT_REGION": "eu-west-1"}
    minimal = [f"{key}={value}" for key, value in MINIMAL.items()]
    launches = {name: (each["command"], *each["overrides"]) for name, each in recorded.items()}
    for name, arguments in {**launches, **PROCESSING}.items():
        yield f"request: {name}", partial(launched, [*arguments, *minimal])


def launched(arguments: list[str]) -> Observed:
    """The exit code, and each member of the request. Hyperparameters are given as overrides."""
    printed, before = StringIO(), sys.argv
    sys.argv = ["", *today(arguments)]
    try:
        with redirect_stdout(printed):
            runpy.run_module("launch.sagemaker", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            return {"error": f"exit code {ended.code}"}
    finally:
        sys.argv = before
    text = re.sub(r"\d{6}-\d{6}(-\d{3})?", "TIME", printed.getvalue())
    text = re.sub(r"\b[0-9a-f]{16}\b", "CODE", text)
    # Where every job keeps its checkpoints today.
    text = re.sub(r'(s3:[^"]+)/([^/"]+)/checkpoints"', r'\1/checkpoints/\2"', text)
    request: dict[str, Any] = json.loads(text)
    # Every job has these two today.
    tags = [tag for tag in request.pop("Tags", []) if tag["Key"] not in ("project", "commit")]
    return plain({**request, **({"Tags": tags} if tags else {})})


def plain(member: Any) -> Any:
    """A member of a request, with hyperparameters as overrides and without the known metrics."""
    if not isinstance(member, dict):
        return member
    kept = {name: plain(value) for name, value in member.items() if name != "MetricDefinitions"}
    for name in kept.keys() & {"HyperParameters", "StaticHyperParameters"}:
        chunks = [kept[name].pop(key) for key in sorted(kept[name]) if key.startswith("hydra_")]
        given = [f"{key}={value}" for key, value in kept[name].items()]
        kept[name] = sorted(today([*given, *json.loads("".join(chunks) or "[]")]))
    return kept


def ends(observe: Observe) -> Observed:
    """What is observed, or the error that ends it."""
    try:
        return observe()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(output: Path, recorded: Path, word: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        all_of_them = chain(samples(Path(folder)), requests(json.loads(recorded.read_text())))
        observed = {name: ends(observe) for name, observe in all_of_them if word in name}
    output.write_text(json.dumps(observed))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
