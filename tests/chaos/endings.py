"""What a run ends with: weights, metrics, predictions. Two runs are equal if all bits are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.chaos import traces
from tests.commands import predict
from tests.entry_point.prediction.predicted import rows
from tests.entry_point.training.training_jobs import read_records, timeless

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Ending:
    """The results of a finished run."""

    weights: Tensors
    best_weights: Tensors
    metrics: list[dict[str, Any]]
    predictions: list[dict[str, Any]]
    names: set[str]

    @classmethod
    def read(cls, run: Path, images: Path) -> Ending:
        """Of the run folder `run`; `images` are classified with its model."""
        traces.require_only_checkpoints(run / "checkpoints")
        found, output = traces.names(run), run / "predictions"
        where = [f"model_dir={run / 'model'}", f"input={images}", f"output_dir={output}"]
        assert predict([*where, "pipeline.num_workers=1"]) == 0
        best = torch.load(run / "checkpoints/best.pt", weights_only=True)
        return cls(
            load_file(run / "model/model.safetensors"),
            best["learner"]["model"],
            timeless(read_records(run)),
            rows(output),
            found,
        )

    def require_equal(self, other: Ending) -> None:
        different = [
            pair
            for pair in zip(self.metrics, other.metrics, strict=True)
            if len(set(map(str, pair))) > 1
        ]
        assert not different, f"first of {len(different)} records: {different[0]}"
        _require_same(self.weights, other.weights)
        _require_same(self.best_weights, other.best_weights)
        assert self.predictions == other.predictions
        assert self.names == other.names


def _require_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert not [key for key in one if not torch.equal(one[key], other[key])]
