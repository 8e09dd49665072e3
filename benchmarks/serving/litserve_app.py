"""LitServe with the same model: `python litserve_app.py ENGINE MODEL PORT`.

An image arrives as its documentation's examples send it: in base64 within JSON. Engines differ only
in what computes the model, with its normalization and softmax.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable
from pathlib import Path

import litserve
import torch
from torch import Tensor

from entry_point.model_folder import load_model
from tests.entry_point.prediction.predicted import center_crop

_MAX_BATCH, _MAX_WAIT_S = 8, 0.002
"""The values of `serve` on a CPU."""
Predict = Callable[[Tensor], Tensor]
"""uint8 (N, 3, image_size, image_size) -> answers (N, classes)."""


def by_torch(folder: Path) -> Predict:
    return load_model(folder, torch.device("cpu")).predict


def by_onnxruntime(folder: Path) -> Predict:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    # As OMP_WAIT_POLICY=PASSIVE: idle threads would take the cores from decoding and HTTP.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    return lambda pixels: torch.from_numpy(session.run(None, {"images": pixels.numpy()})[0])


def by_openvino(folder: Path) -> Predict:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32"}  # the default is bf16 where the CPU has it
    model = openvino.compile_model(folder / "model.onnx", "CPU", settings)
    return lambda pixels: torch.from_numpy(model(pixels.numpy())[0])


ENGINES = {"torch": by_torch, "onnxruntime": by_onnxruntime, "openvino": by_openvino}


class Classifier(litserve.LitAPI):
    """LitServe runs it in a process of its own, beside that of the HTTP server."""

    def setup(self, device: str) -> None:
        engine, folder = sys.argv[1], Path(sys.argv[2])
        self._model = load_model(folder, torch.device(device))
        self._predict = ENGINES[engine](folder)

    def decode_request(self, request: dict[str, list[str]]) -> Tensor:
        body = base64.b64decode(request["instances"][0])
        return center_crop(body, self._model.image_size, self._model.config.data.resize)

    def predict(self, pixels: Tensor) -> Tensor:
        return self._predict(pixels)

    def encode_response(self, output: Tensor) -> dict[str, list[float]]:
        return {"probabilities": output.topk(10).values.tolist()}


if __name__ == "__main__":
    api = Classifier(max_batch_size=_MAX_BATCH, batch_timeout=_MAX_WAIT_S, api_path="/invocations")
    server = litserve.LitServer(api, accelerator="cpu", healthcheck_path="/ping")
    server.run(host="127.0.0.1", port=int(sys.argv[3]), generate_client_file=False)
