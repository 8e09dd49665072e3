"""The speed of the server on the GPU, and what many clients get done of what one does.

`python -m benchmarks.gpu.gpu_serving cuda|cpu` prints both as JSON. That its answers are those of
the CPU is in the tests marked `gpu`.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.sample_photographs import photographs
from benchmarks.serving.serve_contenders import Clients, server, write_model
from benchmarks.serving.serve_speed import CLIENTS, latency


def main(device: str) -> None:
    on_gpu, speeds, rates = device == "cuda", [], []
    with TemporaryDirectory() as folder, closing(Clients()) as clients:
        photos = Path(folder, "photos")
        photos.mkdir()
        for number, photo in enumerate(photographs()):
            (photos / f"{number}.jpg").write_bytes(photo)
        with server(write_model(Path(folder, "run")), "bf16", on_gpu=on_gpu) as ready:
            for count in CLIENTS:
                sent = clients.send(ready, photos, count, 5.0 if on_gpu else 0.1)
                p50, p99 = (f"p{p} {latency([sent], p):.3g} ms" for p in (50, 99))
                rates.append(sent.per_second)
                speeds.append(f"{count} clients: {sent.per_second:.4g}/s, {p50}, {p99}")
    speed = f"ResNet-18 in bf16, {'; '.join(speeds)}"
    values = {"times one client": rates[-1] / rates[0], "speed": speed}
    sys.stdout.write(f"{json.dumps(values)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
