"""Evaluate a finished run's model: `python -m entry_point evaluate [key=value ...]`.

Computes the task's metrics on a split of the run's dataset, or of another one whose classes the
model knows. Writes them to evaluation.json, with the worst predictions to evaluation.html, and the
answer and loss of each image to predictions.csv.
"""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl
import torch
from torch.nn import functional

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.config.evaluate_config import EvaluateConfig
from entry_point.config.resolve import resolve
from entry_point.config.train_config import TrainerConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import build_loader, dataset_root
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.packing.output_folder import locked
from entry_point.data.sources.dataset import Dataset, open_dataset
from entry_point.data.sources.source import Source
from entry_point.data.sources.splits import WHOLE
from entry_point.job.devices import Devices, join_devices
from entry_point.job.known_tasks import LOSS
from entry_point.job.own_code import PACKAGE
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import CONTAINER_ROOT, RunFolder
from entry_point.job.stop import StopRequest
from entry_point.job.text import counted, printable
from entry_point.job.whole_file import write_text
from entry_point.model_folder import Trained, load_trained, read_config, unpacked
from entry_point.prediction_table import write_csv
from entry_point.training import evaluation
from entry_point.training.evaluation import Evaluation
from entry_point.training.input import device_batches
from entry_point.training.models import Normalize
from entry_point.training.results.report import Evaluated, write_page
from entry_point.training.tasks.build_task import HOLDS
from entry_point.training.tasks.task import Table, Task

log = logging.getLogger(__name__)

RESULTS = "evaluation.json"


def run(config: EvaluateConfig) -> int:
    """Evaluate, write the results and log the metrics; returns the exit code."""
    with unpacked(Path(config.model_dir)) as folder:
        own = read_config(folder)
        trainer = _on_this_machine(own.trainer, config.batch_size)
        if "format" in config.data and "." in (named := config.changed(own.data).format):
            resolve("data.format", named, {})  # this project's, not the folder's of the same name
        with join_devices(trainer) as devices:
            trained = load_trained(folder, devices.device)
            data = config.changed(trained.config.data)
            _check_format(data, config, folder)
            root = dataset_root(data, RunFolder(CONTAINER_ROOT).channels)
            # In the run's own dataset, val holds the images that training validated on.
            divides = not config.names_dataset or data.val_fraction is not None
            dataset = open_dataset(data, root, for_training=divides)
            split = config.split or _default_split(dataset)
            source = dataset.source(split)
            with locked(Path(config.output_dir, RESULTS), key="output_dir"):
                found = evaluate(trained, source, dataset.data, config, devices)
                done = Evaluated(trained.task, trained.network, source, found, data)
                _write(config, split, trained.reached, done)
        _log(found, trained.task, config, split)
    return ExitCode.FINISHED


def _on_this_machine(trainer: TrainerConfig, batch_size: int) -> TrainerConfig:
    """Returns the run's settings for this machine's devices."""
    here = replace(trainer, device="auto", nproc_per_host=None, batch_size=batch_size)
    is_tf32 = here.precision == "tf32" and not torch.cuda.is_available()
    return replace(here, precision="fp32") if is_tf32 else here


def _default_split(dataset: Dataset) -> str:
    """Returns `val`, or the only split of a dataset with one or none. Raises DataError."""
    if "val" in dataset.splits:
        return "val"
    if len(dataset.splits) == 1:
        return dataset.splits[0]
    choices = " or ".join(f"split={split}" for split in (*dataset.splits, WHOLE))
    raise DataError(f"{dataset.root} has no split val: choose {choices}")


def _check_format(data: DataConfig, config: EvaluateConfig, folder: Path) -> None:
    """Raise ConfigError if the model folder, which may be untrusted, names other code."""
    is_own = data.format.startswith(f"{PACKAGE}.") or "format" in config.data
    if "." in data.format and not is_own:
        message = (
            f"comes from {folder}, not from you; if you trust it, add data.format={data.format}"
        )
        raise ConfigError("data.format", data.format, message)


def evaluate(
    trained: Trained, source: Source, data: DataConfig, config: EvaluateConfig, devices: Devices
) -> Evaluation:
    """Evaluate on all images of `source`, cropped as for validation.

    Raises DataError if the source has labels of another kind, or classes that the model does not
    know.
    """
    if source.kind != trained.task.takes:
        learned, found = HOLDS[trained.task.takes], HOLDS[source.kind]
        message = f"the model learned from {learned}, but the dataset holds {found}: choose other"
        raise DataError(f"{message} labels, with data.table.labels and data.table.kind")
    order = _order_of(source, trained.classes, data).to(devices.device)
    spec = LoaderSpec(data, config.pipeline, "val", config.batch_size, 0, device=devices.device)
    normalize = Normalize(*data.normalization, devices.input_dtype).to(devices.device)
    with closing(build_loader(source, spec)) as loader:
        batches = device_batches(loader.epoch(0), devices.device, normalize)
        if source.kind == "class":
            batches = (replace(batch, labels=order[batch.labels]) for batch in batches)
        elif source.kind != "targets":
            batches = (
                replace(batch, labels=functional.pad(batch.labels, (0, 1))[:, order])
                for batch in batches
            )
        network, task = trained.network, trained.task
        return evaluation.evaluate(
            network, task, batches, devices, samples=len(source), stop=StopRequest()
        )


def _order_of(source: Source, known: list[str], data: DataConfig) -> torch.Tensor:
    """Returns the model's number of each class of the source. For labels and numbers, returns the
    source's column for each of the model's; the number of its columns for a label that none of its
    images has. Masks are set to the model's numbers.

    Raises DataError for names that the model does not know, or that the source lacks but needs.
    """
    names = list(source.classes)
    if unknown := [name for name in names if name not in known]:
        shown = printable(", ".join(unknown[:5]))
        raise DataError(f"the model does not know {shown}: remove or rename these images or labels")
    if source.kind == "targets":
        source.renumber(known)
    if source.kind not in ("labels", "numbers"):
        return torch.tensor([known.index(name) for name in names])
    missing = [name for name in known if name not in names]
    if missing and (source.kind == "numbers" or not _has_lists(names, data)):
        shown, remedy = printable(", ".join(missing[:5])), "add columns"
        if data.format == "shards":
            remedy = "pack it again, from a table with a column for each label"
        raise DataError(f"the dataset lacks {shown}, which the model predicts: {remedy}")
    return torch.tensor([names.index(name) if name in names else len(names) for name in known])


def _has_lists(names: list[str], data: DataConfig) -> bool:
    """Returns whether labels come from lists of names, in which a missing label is absent. Columns,
    and lists with a value for each label, leave it unknown, as may packed labels and your own."""
    places = [f"{names[0].removesuffix(' 0')} {place}" for place in range(len(names))]
    is_table = data.format in ("manifest", "parquet", "webdataset")
    return is_table and len(data.table.labels) < 2 and (not names or names != places)


def _write(config: EvaluateConfig, split: str, reached: str | None, done: Evaluated) -> None:
    """Write evaluation.json, the page, and predictions.csv with the largest loss first."""
    output, task, found = Path(config.output_dir), done.task, done.evaluation
    facts: dict[str, str | int] = {
        "model": str(Path(config.model_dir).resolve()),
        "data": done.data.root or "the input channel",
        "split": split,
        "images": len(found.indices),
        "damaged": found.damaged,
    }
    if reached is not None:
        facts["reached"] = reached
    tables = {table.title: _as_json(table) for table in task.tables(found.scores)}
    result = {**facts, "metrics": found.metrics, "tables": tables}
    write_text(output / RESULTS, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    paths = [done.source.key(index) for index in found.indices.tolist()]
    losses = found.scores[:, 0].tolist()
    frame = pl.DataFrame({"path": paths, **task.outcomes(found.scores), "loss": losses})
    frame = frame.sort("loss", descending=True, maintain_order=True)
    write_csv(frame.lazy(), output / "predictions.csv")
    title, shown = f"{split} of {facts['data']}", {name: str(each) for name, each in facts.items()}
    write_page(output / "evaluation.html", title, shown, done)


def _as_json(table: Table) -> list[dict[str, object]]:
    """Returns a table's rows by the names of its columns, with null for undefined values."""
    rows = (
        [None if isinstance(cell, float) and cell != cell else cell for cell in row]
        for row in table.rows
    )
    return [dict(zip(table.head, row, strict=True)) for row in rows]


def _log(found: Evaluation, task: Task, config: EvaluateConfig, split: str) -> None:
    """Log the metrics, and the paths of the results."""
    for metric in (*task.metrics, LOSS):
        if metric.name in found.metrics:
            log.info("  %-20s %s", metric.label, metric.show(found.metrics[metric.name]))
    log.info(
        "%s%s evaluated with %s%s; written to %s, beside evaluation.json and predictions.csv",
        counted(len(found.indices), "image"),
        "" if split == WHOLE else f" of {split}",
        config.model_dir,
        f", {found.damaged} damaged" if found.damaged else "",
        Path(config.output_dir, "evaluation.html"),
    )


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("evaluate")
