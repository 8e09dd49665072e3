"""Predict many images with a finished model: `python -m entry_point predict input=PATH [...]`.

Writes one Parquet file per part of the images, with a row for each image, into `output_dir`. A part
appears under its name once it is complete; the same command skips it from then on. In a SageMaker
Processing job, the folders default to the job's, and each host predicts one part.

The column `error` has the reason why an image is damaged, which affects no other prediction. The
masks of a segmentation are PNG files in the folder `masks` beside the Parquet files.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.part import Part, part_of_run, path_of_run
from entry_point.config.predict_config import PredictConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import build_prediction_loader
from entry_point.data.packing.output_folder import locked
from entry_point.data.progress_bar import track
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.source import Source, fingerprint
from entry_point.data.sources.splits import WHOLE
from entry_point.job.devices import limit_threads
from entry_point.job.processing import ProcessingJob
from entry_point.job.program import ExitCode
from entry_point.job.text import counted, printable
from entry_point.job.whole_file import replacing
from entry_point.model_folder import CODE, FILES, NOT_FINITE, load_model, unpacked
from entry_point.prediction_table import (
    MADE_FROM,
    NAMES,
    STATES,
    PredictionTable,
    write_csv,
    write_parquet,
)

_LISTED = 20
"""Most damaged images to list; the column `error` has all."""


@dataclass(frozen=True)
class Prediction:
    """The input and output of one run of the command."""

    config: PredictConfig
    model: Path
    """The model's folder."""
    images: Source
    places: range
    """Numbers of the part's images."""
    part: Part
    folder: Path
    made_from: str
    """Hash of all images' names, the model and the output."""
    states: str
    """Hash of the sizes and modification times of the part's images."""

    @property
    def file(self) -> Path:
        return self.folder / self.part.predictions


def run(config: PredictConfig) -> int:
    """Predict the part unless it is complete, and list damaged images; returns the exit code."""
    with unpacked(Path(config.model_dir)) as model:
        prediction = plan(config, ProcessingJob.here(), model)
        file = prediction.file
        csv = file.with_suffix(".csv")
        with locked(file, key="output_dir"):
            damaged = None if is_complete(prediction) else predict(prediction)
            if config.csv:
                names = json.loads(pl.read_parquet_metadata(file).get(NAMES, "[]"))
                write_csv(pl.scan_parquet(file, glob=False), csv, names)
    if damaged is None:
        _say(f"{file} is already complete")
        return ExitCode.FINISHED
    for line in damaged[:_LISTED]:
        _say(line)
    if (more := len(damaged) - _LISTED) > 0:
        _say(f"damaged, but not listed: {more}, see the column error")
    count = counted(len(prediction.places) - len(damaged), "image")
    count += f" predicted, {len(damaged)} damaged" if damaged else " predicted"
    _say(f"{count}; written to {file}" + (f" and {csv.name}" if config.csv else ""))
    return ExitCode.FINISHED


def plan(config: PredictConfig, job: ProcessingJob | None, model: Path) -> Prediction:
    """Choose paths and part, and list the images. Raises ConfigError and DataError.

    `model` is the folder of `config.model_dir`.
    """
    source = path_of_run("input", config.input, job.input if job else None)
    folder = path_of_run("output_dir", config.output_dir, job.output if job else None)
    if not source.exists():
        raise ConfigError("input", source, "there is no such file or folder")
    part, own_files = part_of_run(config.part, job, source)
    data = config.dataset(str(source))
    images = open_dataset(data, source, for_training=False, labeled=False).source(WHOLE)
    if not len(images) and not own_files:
        raise ConfigError("input", source, "holds no image files")
    places = range(len(images)) if own_files else part.of(len(images))
    made_from = _fingerprint(config, source, images, model)
    states = sha256()
    for image in places:
        states.update(repr(images.status(image)).encode())
    return Prediction(config, model, images, places, part, folder, made_from, states.hexdigest())


def _fingerprint(config: PredictConfig, source: Path, images: Source, model: Path) -> str:
    """Returns a hash of everything that affects predictions, except the content of the images."""
    # With the folder, because another one may have files of the same names.
    where = f"{source.resolve()} {config.images and Path(config.images).resolve()}"
    what = f"{fingerprint(images)} {config.output} {where}{config.data.get('gray_bits', '')}"
    made_from = sha256(what.encode(errors="backslashreplace"))
    code = sorted((model / CODE).rglob("*.py"))
    for file in (*(model / name for name in FILES), *code):
        if file.is_file():
            made_from.update(file.read_bytes())
    return made_from.hexdigest()


def is_complete(prediction: Prediction) -> bool:
    """Returns whether the part is complete already.

    Raises DataError if an image has changed since, or if the folder holds other predictions:
    readers take all its Parquet files as one table.
    """
    count, choose = prediction.part.count, "choose another output_dir, or remove what it holds"
    made = sorted(prediction.folder.glob("[!.]*.parquet"))
    for file in made:
        if not re.fullmatch(rf"part-\d+-of-{count}\.parquet", file.name):
            raise DataError(f"{file} is not one of {count} parts: {choose}")
    is_made = prediction.file in made
    # All earlier parts were compared with the first one when they were made.
    for file in [prediction.file] if is_made else made[:1]:
        found = pl.read_parquet_metadata(file)
        if found.get(MADE_FROM) != prediction.made_from:
            raise DataError(
                f"{file} was made from other images, or with another model or output: {choose}"
            )
        if is_made and found.get(STATES, prediction.states) != prediction.states:
            raise DataError(f"an image of {file} has changed since it was predicted: {choose}")
    return is_made


def predict(prediction: Prediction) -> list[str]:
    """Write the part's file by row groups; returns a line for each damaged image."""
    config, file, damaged = prediction.config, prediction.file, list[str]()
    limit_threads()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(prediction.model, device)
    if model.reached is not None:
        _say(f"{config.model_dir}: {model.reached}")
    table = PredictionTable(model, config.output, prediction.folder)
    rows = _rows(prediction, table, damaged)
    batches = track(rows, len(prediction.places), "predicting", images_of=len)
    # Readers ignore this name. The next run overwrites a file that a killed one left under it.
    with replacing(file, file.with_name(f".{file.name}.part")) as unfinished:
        made = {MADE_FROM: prediction.made_from, STATES: prediction.states}
        write_parquet(unfinished, table, made, batches)
    return damaged


def _rows(
    prediction: Prediction, table: PredictionTable, damaged: list[str]
) -> Iterator[pl.DataFrame]:
    """Yields the rows of each batch; adds a line for each damaged image to `damaged`."""
    model, config, images = table.model, prediction.config, prediction.images
    left, data, size = prediction.places, model.config.data, config.batch_size
    if "gray_bits" in config.data:
        data = replace(data, gray_bits=config.data["gray_bits"])
    loader = build_prediction_loader(images, left, data, config.pipeline, size, model.device)
    # Silences the loader's warning for each damaged image, as `run` lists them at the end.
    log = logging.getLogger("entry_point.data.loader")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        for batch in loader.epoch(0):
            samples, left = left[:size], left[size:]
            answers = table.answer(batch.images) if len(batch.indices) else table.nothing
            finite = answers.flatten(1).isfinite().all(1).numpy()
            geometry = batch.geometry and batch.geometry.of(np.flatnonzero(finite))
            answered = dict(zip(batch.indices.tolist(), finite.tolist(), strict=True))
            reasons = {i: None if is_finite else NOT_FINITE for i, is_finite in answered.items()}
            damage = iter(batch.damage)
            errors = [reasons[i] if i in reasons else next(damage).reason for i in samples]
            names = [images.name(i) for i in samples]
            yield table.rows(names, answers[finite], geometry, errors)
            reasoned = zip(samples, errors, strict=True)
            damaged += [f"{images.key(i)}: {reason}" for i, reason in reasoned if reason]
    finally:
        loader.close()
        log.setLevel(before)


def _say(text: str) -> None:
    sys.stderr.write(f"predict: {printable(text)}\n")


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("predict")
