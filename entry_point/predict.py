"""Classify images with a finished model: `python -m entry_point.predict input=PATH [...]`.

Writes one CSV or JSON line per image, in the order of the paths. Files that are no whole image
are listed on stderr and left out, and the exit code is 1 then unless `allow_bad=true`.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from omegaconf import MISSING, OmegaConf
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader, Dataset

from entry_point import exit_codes, inference
from entry_point.config import load_config
from entry_point.config_errors import ConfigError, check_choice, check_range
from entry_point.training import atomic


@dataclass
class PredictConfig:
    input: str = MISSING
    """An image, or a folder that is searched with its sub-folders."""
    model_dir: str = MISSING
    """The `model` folder of a finished run."""
    output: str | None = None
    """File to write; null writes to stdout."""
    format: str = "csv"
    """csv (path, class, probability) or jsonl (all probabilities too)."""
    batch_size: int = 32
    num_workers: int = 2
    """Processes that decode; 0 decodes in this one."""
    allow_bad: bool = False
    """Exit with 0 although some files could not be read."""

    def __post_init__(self) -> None:
        check_choice("format", self.format, ("csv", "jsonl"))
        check_range("batch_size", self.batch_size, 1)
        check_range("num_workers", self.num_workers, 0)
        if not (Path(self.model_dir) / inference.PROGRAM).is_file():
            raise ConfigError(
                f"model_dir={self.model_dir}: has no {inference.PROGRAM}; name the model folder "
                "of a run that finished with trainer.report=true"
            )
        if not Path(self.input).exists():
            raise ConfigError(f"input={self.input}: there is no such file or folder")


@dataclass(frozen=True)
class Sample:
    """One file: its pixels, or why there are none."""

    path: str
    pixels: torch.Tensor | None
    reason: str = ""


class ImageFiles(Dataset[Sample]):
    """Files as the model wants them: uint8 `(3, S, S)`."""

    def __init__(self, paths: Sequence[Path], image_size: int, resize: int) -> None:
        self._paths, self._image_size, self._resize = paths, image_size, resize

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Sample:
        path = self._paths[index]
        try:
            image = inference.read_image(path.read_bytes())
        except (OSError, ValueError) as error:
            return Sample(str(path), None, str(error))
        return Sample(str(path), inference.prepare(image, self._image_size, self._resize))


def find_images(root: Path) -> list[Path]:
    """The file itself, or a folder's files of any format that Pillow reads, sorted."""
    if root.is_file():
        return [root]
    known = Image.registered_extensions()
    paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in known and p.is_file())
    if not paths:
        raise ConfigError(f"input={root}: holds no image files")
    return paths


def predict(config: PredictConfig, out: TextIO) -> list[Sample]:
    """Write the predictions; returns the files that could not be read."""
    model = inference.model_fn(config.model_dir)
    paths = find_images(Path(config.input))
    loader = DataLoader(
        ImageFiles(paths, model.image_size, model.resize),
        config.batch_size,
        num_workers=min(config.num_workers, len(paths)),
        collate_fn=list,
    )
    bad: list[Sample] = []
    write = _csv_writer(out) if config.format == "csv" else _jsonl_writer(out)
    console = Console(stderr=True)
    for samples in track(
        loader, "predicting", console=console, disable=not console.is_terminal, transient=True
    ):
        good = [sample for sample in samples if sample.pixels is not None]
        bad.extend(sample for sample in samples if sample.pixels is None)
        if good:
            batch = torch.stack([s.pixels for s in good if s.pixels is not None])
            described = inference.describe(inference.predict_batch(batch, model), model.classes)
            for sample, prediction in zip(good, described, strict=True):
                write(sample.path, prediction)
    return bad


Write = Callable[[str, dict[str, Any]], object]


def _csv_writer(out: TextIO) -> Write:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["path", "class", "probability"])
    return lambda path, p: writer.writerow([path, p["class"], p["probability"]])


def _jsonl_writer(out: TextIO) -> Write:
    return lambda path, p: out.write(json.dumps({"path": path, **p}, ensure_ascii=False) + "\n")


@contextmanager
def _opened(output: str | None) -> Iterator[TextIO]:
    """The file, which appears when it is complete; stdout if none is named."""
    if output is None:
        yield sys.stdout
        return
    with (
        atomic.replacing(Path(output)) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        yield file


def main(arguments: Sequence[str]) -> int:
    """Command line: Hydra overrides of configs/predict.yaml."""
    try:
        config = OmegaConf.to_object(load_config("predict", PredictConfig, arguments))
        assert isinstance(config, PredictConfig)
        with _opened(config.output) as out:
            bad = predict(config, out)
    except ConfigError as error:
        sys.stderr.write(f"predict: {error}\n")
        return exit_codes.USAGE
    for sample in bad:
        sys.stderr.write(f"predict: {sample.path}: {sample.reason}\n")
    return exit_codes.FAILED if bad and not config.allow_bad else exit_codes.FINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
