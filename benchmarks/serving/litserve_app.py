"""LitServe with the same model: `python litserve_app.py MODEL PORT`.

An image arrives as its documentation's examples send it: in base64 within JSON.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import litserve
import torch
from torch import Tensor

from entry_point.model_folder import load_model
from tests.entry_point.prediction.predicted import center_crop

_MAX_BATCH, _MAX_WAIT_S = 8, 0.002
"""Those of `serve` on a CPU."""


class Classifier(litserve.LitAPI):
    """LitServe runs it in a process of its own, beside that of the HTTP server."""

    def setup(self, device: str) -> None:
        self._model = load_model(Path(sys.argv[1]), torch.device(device))

    def decode_request(self, request: dict[str, list[str]]) -> Tensor:
        body = base64.b64decode(request["instances"][0])
        return center_crop(body, self._model.image_size, self._model.resize)

    def predict(self, pixels: Tensor) -> Tensor:
        return self._model.predict(pixels)

    def encode_response(self, output: Tensor) -> dict[str, list[float]]:
        return {"probabilities": output.topk(10).values.tolist()}


if __name__ == "__main__":
    api = Classifier(max_batch_size=_MAX_BATCH, batch_timeout=_MAX_WAIT_S, api_path="/invocations")
    server = litserve.LitServer(api, accelerator="cpu", healthcheck_path="/ping")
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
