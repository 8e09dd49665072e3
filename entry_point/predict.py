"""Predict images with a finished model: `python -m entry_point.predict input=PATH [...]`.

Writes one CSV or JSON line per image, sorted by path. Damaged files are skipped and listed on
stderr; the exit code is then 1 unless `allow_bad=true`.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from PIL import Image
from rich.console import Console
from rich.progress import track

from entry_point import inference
from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.predict_config import PredictConfig
from entry_point.contract import exit_codes
from entry_point.contract.printable import printable
from entry_point.contract.program import run_program
from entry_point.contract.user_error import UserError
from entry_point.contract.whole_file import naming, replacing
from entry_point.data.batch import Damage
from entry_point.data.file_loader import build_file_loader
from entry_point.large_imports import end_process


def check_paths(config: PredictConfig) -> None:
    """Raise ConfigError for a path that cannot be used, before any work is done."""
    if not (Path(config.model_dir) / inference.PROGRAM).is_file():
        raise ConfigError(
            "model_dir",
            config.model_dir,
            f"has no {inference.PROGRAM}{_links(Path(config.model_dir))}; name the model folder of "
            "a run that finished with trainer.report=true",
        )
    if not Path(config.input).exists():
        raise ConfigError("input", config.input, "there is no such file or folder")
    output = Path(config.output) if config.output is not None else None
    if output is not None and output.is_dir():
        raise ConfigError("output", output, "is a folder; name a file")
    if output is not None and not output.parent.is_dir():
        raise ConfigError("output", output, f"there is no folder {output.parent}; create it first")


def _links(path: Path) -> str:
    """Show the targets of symbolic links: `runs/latest` alone does not say which run it is."""
    links = [link for link in (path, *path.parents) if link.is_symlink()]
    return "".join(f" ({link} points to {link.readlink()})" for link in links)


def find_images(root: Path) -> list[Path]:
    """The file itself, or a folder's files in any format that Pillow reads, sorted."""
    if root.is_file():
        return [root]
    known = {end for end, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in known and p.is_file())
    if not paths:
        raise ConfigError("input", root, "holds no image files")
    return paths


def predict(config: PredictConfig, out: TextIO) -> tuple[int, list[Damage]]:
    """Write the predictions; returns their number and the damaged files."""
    model = _load(config.model_dir)
    paths = find_images(Path(config.input))
    loader = build_file_loader(
        paths, model.image_size, model.resize, config.pipeline(), config.batch_size
    )
    count = 0
    bad: list[Damage] = []
    write = _csv_writer(out, model) if config.format == "csv" else _jsonl_writer(out)
    console = Console(stderr=True)
    try:
        for batch in track(
            loader.epoch(0),
            "predicting",
            total=loader.steps_per_epoch,
            console=console,
            disable=not console.is_terminal,
            transient=True,
        ):
            bad.extend(batch.damage)
            count += len(batch.indices)
            if len(batch.indices):
                described = inference.describe(inference.predict_batch(batch.images, model), model)
                for index, prediction in zip(batch.indices.tolist(), described, strict=True):
                    write(printable(str(paths[index])), prediction)
    finally:
        loader.close()
    return count, bad


def _load(folder: str) -> inference.Model:
    try:
        return inference.model_fn(folder)
    except inference.ModelError as error:
        raise UserError(str(error)) from error


Write = Callable[[str, dict[str, Any]], object]


def _csv_writer(out: TextIO, model: inference.Model) -> Write:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["path", *inference.csv_head(model)])
    return lambda path, p: writer.writerow([path, *inference.csv_line(p)])


def _jsonl_writer(out: TextIO) -> Write:
    return lambda path, p: out.write(json.dumps({"path": path, **p}, ensure_ascii=False) + "\n")


@contextmanager
def _opened(output: str | None) -> Iterator[TextIO]:
    """The output file, which appears once it is complete; a device or pipe, or stdout."""
    path = Path(output or "stdout")
    if output is None:
        with naming(path):
            yield sys.stdout
            sys.stdout.flush()
    elif path.exists() and not path.is_file():
        with naming(path), path.open("w", encoding="utf-8", newline="") as file:
            yield file
    else:
        with (
            replacing(path.resolve()) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            yield file


@contextmanager
def _without_damage_warnings() -> Iterator[None]:
    """Silence the loader's warning for each damaged file: `run` lists them at the end."""
    log = logging.getLogger("entry_point.data.checked_loader")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def main(arguments: Sequence[str]) -> int:
    """Command line: Hydra overrides of configs/predict.yaml."""
    return run_program("predict", partial(run, arguments))


def run(arguments: Sequence[str]) -> int:
    """Predict the images, then list the damaged files; returns the exit code."""
    config = load_config("predict", PredictConfig, arguments)
    check_paths(config)
    with _opened(config.output) as out, _without_damage_warnings():
        count, bad = predict(config, out)
    for damage in bad:
        sys.stderr.write(f"predict: {damage.key}: {damage.reason}\n")
    sys.stderr.write(f"predict: {_summary(count, len(bad), config)}\n")
    return exit_codes.FAILED if bad and not config.allow_bad else exit_codes.FINISHED


def _summary(count: int, bad: int, config: PredictConfig) -> str:
    text = f"{count} image{'' if count == 1 else 's'} predicted"
    if bad:
        text += f", {bad} damaged" + ("" if config.allow_bad else " (allow_bad=true accepts them)")
    return text + (f"; written to {config.output}" if config.output else "")


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
