"""Predict many images with a finished model: `python -m entry_point predict input=PATH [...]`.

Writes one Parquet file per part of the images, with a row for each image, into `output_dir`. A part
appears under its name once it is complete; the same command skips it from then on. In a SageMaker
Processing job, the folders default to the job's, and each host predicts one part.

A damaged image has the reason in the column `error`, and costs no other prediction. The masks of a
segmentation are PNG files beside the Parquet files, in the folder `masks`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl
import torch

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.packing_config import Part
from entry_point.config.predict_config import PredictConfig
from entry_point.data.errors import DataError, without_group
from entry_point.data.loader import build_prediction_loader
from entry_point.data.packing.output_folder import locked
from entry_point.data.progress_bar import track
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.source import Source, fingerprint
from entry_point.data.sources.splits import WHOLE
from entry_point.job.devices import limit_threads
from entry_point.job.hosts import ProcessingJob
from entry_point.job.program import ExitCode, counted, printable
from entry_point.job.whole_file import replacing
from entry_point.model_folder import CODE, CONFIG, HEAD, WEIGHTS, load_model, unpacked
from entry_point.prediction_table import (
    MADE_FROM,
    PredictionTable,
    build_table,
    write_csv,
    write_parquet,
)
from entry_point.training.class_rows import CLASSES

_LISTED = 20
"""Damaged images to list; all are in the column `error`."""


@dataclass(frozen=True)
class Prediction:
    """What one run of the command predicts, and where to."""

    config: PredictConfig
    model: Path
    """Its folder."""
    images: Source
    places: range
    """The part's images."""
    part: Part
    folder: Path
    made_from: str
    """Hash of all images, the model and the output."""

    @property
    def file(self) -> Path:
        return self.folder / self.part.predictions


@dataclass
class Outcome:
    """How many images of the part there are."""

    predicted: int = 0
    damaged: int = 0
    listed: list[str] = field(default_factory=list)
    """The first damaged images, and the reasons."""


@without_group("input")
def run(arguments: Sequence[str]) -> int:
    """Predict the part unless that is done, then list the damaged images; returns the exit code."""
    config, job = load_config("predict", PredictConfig, arguments), ProcessingJob.here()
    with unpacked(Path(config.model_dir)) as model:
        prediction = plan(config, job, model)
        with locked(prediction.file, key="output_dir"):
            outcome = None
            if is_complete(prediction):
                _say(f"{prediction.file} is already complete")
            else:
                with _without_damage_warnings():
                    outcome = predict(prediction)
            if config.csv:
                write_csv(prediction.file, prediction.file.with_suffix(".csv"))
    if outcome is None:
        return ExitCode.FINISHED
    for line in outcome.listed:
        _say(line)
    if (more := outcome.damaged - len(outcome.listed)) > 0:
        _say(f"damaged, but not listed: {more}, see the column error")
    damaged = f", {outcome.damaged} damaged" if outcome.damaged else ""
    also = f" and {prediction.file.with_suffix('.csv').name}" if config.csv else ""
    count = counted(outcome.predicted, "image")
    _say(f"{count} predicted{damaged}; written to {prediction.file}{also}")
    return ExitCode.FINISHED


def plan(config: PredictConfig, job: ProcessingJob | None, model: Path) -> Prediction:
    """Choose paths and part, and list the images. Raises ConfigError and DataError.

    `model` is the folder of `config.model_dir`.
    """
    source = _chosen("input", config.input, job.input if job else None)
    folder = _chosen("output_dir", config.output_dir, job.output if job else None)
    if not source.exists():
        raise ConfigError("input", source, "there is no such file or folder")
    if folder.exists() and not folder.is_dir():
        raise ConfigError("output_dir", folder, "is a file; name a folder")
    of_host = Part() if job is None else Part(job.hosts.rank + 1, job.hosts.count)
    part = config.chosen_part() or of_host
    own_share = job is not None and config.part is None and job.shards_input(source)
    data = config.dataset(str(source))
    images = open_dataset(data, source, for_training=False, labeled=False).source(WHOLE)
    if not len(images) and not own_share:
        raise ConfigError("input", source, "holds no image files")
    places = range(len(images)) if own_share else part.of(len(images))
    # The folder, too: others may have files of the same names.
    where = f"{source.resolve()} {config.images and Path(config.images).resolve()}"
    made_from = sha256(
        f"{fingerprint(images)} {config.output} {where}".encode(errors="backslashreplace")
    )
    code = sorted((model / CODE).rglob("*.py"))
    for file in (*(model / name for name in (WEIGHTS, CONFIG, CLASSES, HEAD)), *code):
        if file.is_file():
            made_from.update(file.read_bytes())
    return Prediction(config, model, images, places, part, folder, made_from.hexdigest())


def _chosen(key: str, value: str | None, default: Path | None) -> Path:
    if value is not None:
        return Path(value)
    if default is None:
        raise ConfigError(key, message=f"has no value; add {key}=PATH")
    return default


def is_complete(prediction: Prediction) -> bool:
    """Returns whether the part is already made.

    Raises DataError if the folder holds what does not belong to the same whole: readers take all
    Parquet files in it as one table.
    """
    count, folder = prediction.part.count, prediction.folder
    choose = "choose another output_dir, or remove what it holds"
    others = sorted(folder.glob("[!.]*.parquet"))
    for file in others:
        if not re.fullmatch(rf"part-\d+-of-{count}\.parquet", file.name):
            raise DataError(f"{file} is not one of {count} parts: {choose}")
    done = prediction.file in others
    # All parts were compared with the first one.
    for file in [prediction.file] if done else others[:1]:
        if _made_from(file) != prediction.made_from:
            raise DataError(
                f"{file} was made from other images, or with another model or output: {choose}"
            )
    return done


def _made_from(file: Path) -> str | None:
    try:
        return pl.read_parquet_metadata(file).get(MADE_FROM)
    except pl.exceptions.PolarsError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file} is damaged ({reason}): remove it") from error


def predict(prediction: Prediction) -> Outcome:
    """Write the part's file, row group by row group."""
    config, outcome = prediction.config, Outcome()
    limit_threads()
    model = load_model(
        prediction.model, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    )
    if model.unfinished is not None:
        _say(f"{config.model_dir}: {model.unfinished}")
    table = build_table(model, config.output, prediction.folder)
    batches = track(
        _rows(prediction, table, outcome),
        len(prediction.places),
        "predicting",
        images_of=len,
    )
    file = prediction.file
    # The next run replaces what a killed one leaves under this name, which readers ignore.
    with replacing(file, file.with_name(f".{file.name}.part")) as unfinished:
        write_parquet(unfinished, table, prediction.made_from, batches)
    return outcome


def _rows(
    prediction: Prediction,
    table: PredictionTable,
    outcome: Outcome,
) -> Iterator[pl.DataFrame]:
    """Yields the rows of each batch; counts them in `outcome`."""
    model, config, images = table.model, prediction.config, prediction.images
    loader = build_prediction_loader(
        images,
        prediction.places,
        model.image_size,
        model.resize,
        config.pipeline,
        config.batch_size,
        model.device,
        model.crop,
        model.gray_bits,
    )
    left = prediction.places
    try:
        for batch in loader.epoch(0):
            samples, left = left[: config.batch_size], left[config.batch_size :]
            damage = iter(batch.damage)
            good = np.isin(samples, batch.indices.numpy()).tolist()
            errors = [None if fine else next(damage).reason for fine in good]
            names = [images.name(i) for i in samples]
            answers = model.predict(batch.images) if len(batch.indices) else table.no_answers
            yield table.rows(names, answers, batch.geometry, errors)
            outcome.predicted += len(batch.indices)
            outcome.damaged += len(batch.damage)
            room = _LISTED - len(outcome.listed)
            outcome.listed += [f"{each.key}: {each.reason}" for each in batch.damage[:room]]
    finally:
        loader.close()


@contextmanager
def _without_damage_warnings() -> Iterator[None]:
    """Silence the loader's warning for each damaged image: `run` lists them at the end."""
    log = logging.getLogger("entry_point.data.loader")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _say(text: str) -> None:
    sys.stderr.write(f"predict: {printable(text)}\n")
