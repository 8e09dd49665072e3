"""The columns that `entry_point.predict` writes: answers of a model, or its features, as Arrow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from arro3.core import (
    Array,
    DataType,
    Field,
    RecordBatch,
    Schema,
    fixed_size_list_array,
    list_array,
)
from numpy.typing import NDArray

from entry_point import inference
from entry_point.data.errors import DataError

_ITEM = Field("item", DataType.float32(), nullable=False)
_TEXTS = DataType.list(Field("item", DataType.utf8(), nullable=False))
_COLUMNS = {
    "classification": {
        "class": DataType.utf8(),
        "class_index": DataType.int32(),
        "probability": DataType.float32(),
    },
    "multilabel": {"labels": _TEXTS},
    "regression": {},
}
"""What the model's kind predicts, before the scores."""
_NO_FEATURES = (
    "output=features: the model does not end in a linear layer that takes one vector per image; "
    "use output=scores"
)
MADE_FROM, NAMES = "made_from", "names"
"""Keys of the file's metadata: the fingerprint; and the names of the scores, as a JSON list."""


@dataclass(frozen=True)
class PredictionTable:
    """One row per image: its name, what the model makes of it, or why it could not be read."""

    model: inference.Model
    output: str
    """`scores` or `features`: the name of the list column, float32 (width,)."""
    width: int

    def schema(self, made_from: str) -> Schema:
        columns = {} if self.output == "features" else _COLUMNS[self.model.kind]
        fields = [Field(name, kind) for name, kind in columns.items()]
        metadata = {MADE_FROM: made_from}
        if self.output == "scores":
            metadata[NAMES] = json.dumps(self.model.names, ensure_ascii=False)
        return Schema(
            [
                Field("path", DataType.utf8(), nullable=False),
                *fields,
                Field(self.output, DataType.list(_ITEM, self.width)),
                Field("error", DataType.utf8()),
            ],
            metadata=metadata,
        )

    def rows(
        self,
        schema: Schema,
        names: Sequence[str],
        answers: torch.Tensor,
        errors: Sequence[str | None],
    ) -> RecordBatch:
        """One row for each of `names`; `answers`, float32 (images, width), are those of the images
        without an error."""
        good = np.array([error is None for error in errors])
        values = np.zeros((len(names), self.width), np.float32)
        values[good] = answers.numpy()
        vectors = fixed_size_list_array(
            Array.from_numpy(values.ravel()),
            self.width,
            type=DataType.list(_ITEM, self.width),
            mask=Array.from_numpy(~good),
        )
        predicted = [] if self.output == "features" else self._predicted(values, good)
        # Arrow's text is UTF-8; the bytes of a file name need not be.
        texts = [name.encode(errors="backslashreplace").decode() for name in names]
        return RecordBatch.from_arrays(
            [
                Array(texts, type=DataType.utf8()),
                *predicted,
                vectors,
                Array(list(errors), type=DataType.utf8()),
            ],
            schema=schema,
        )

    def _predicted(self, values: NDArray[np.float32], good: NDArray[np.bool_]) -> list[Array]:
        """The columns of _COLUMNS."""
        names = self.model.names
        if self.model.kind == "classification":
            likeliest = values.argmax(1)
            found = [
                (names[place], place, float(row[place])) if known else (None, None, None)
                for row, place, known in zip(values, likeliest.tolist(), good, strict=True)
            ]
            kinds = _COLUMNS["classification"].values()
            columns = zip(*found, strict=True)
            return [Array(column, type=kind) for column, kind in zip(columns, kinds, strict=True)]
        if self.model.kind == "multilabel":
            reached = (values.astype(np.float64) >= self.model.threshold) & good[:, None]
            ends = np.cumsum([0, *reached.sum(1)], dtype=np.int32)
            texts = Array([names[label] for label in np.nonzero(reached)[1]], type=DataType.utf8())
            mask = Array.from_numpy(~good)
            return [list_array(Array.from_numpy(ends), texts, type=_TEXTS, mask=mask)]
        return []


def build_table(model: inference.Model, output: str) -> PredictionTable:
    """The table of a model's `scores`, or of its `features`, by one prediction of a black image.

    Raises DataError if the model has no features.
    """
    if output == "features":
        model = _with_features(model)
    black = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
    answers = inference.predict_batch(black, model)
    if answers.dim() != 2:
        raise DataError(_NO_FEATURES)
    return PredictionTable(model, output, answers.shape[1])


def _with_features(model: inference.Model) -> inference.Model:
    """The model, answering with what its last linear layer gets, float32 (N, features).

    A model of numbers that does not end in a linear layer answers with its features already: the
    encoders of self-supervised training do.
    """
    program = model.program
    assert isinstance(program, torch.fx.GraphModule)
    output = program.graph.output_node()
    outputs: Any = output.args
    ((node,),) = outputs
    while node.target != torch.ops.aten.linear.default:
        # Parameters and constants aside, what follows the last layer has one input.
        inputs = [each for each in node.all_input_nodes if each.op != "get_attr"]
        if len(inputs) != 1 or node.target == torch.ops.aten.conv2d.default:
            if model.kind == "regression":
                return model
            raise DataError(_NO_FEATURES)
        (node,) = inputs
    output.args = ((node.args[0],),)
    program.graph.eliminate_dead_code()
    program.recompile()
    return replace(model, program=program)
