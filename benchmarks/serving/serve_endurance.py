"""Memory of `serve` over many requests, and requests that its stops lose:
docs/results/serving-endurance.md.

The model costs nothing. Clients send, in turns, JPEGs, a PNG, JSON in base64 and a damaged image. A
stop sends SIGTERM while all clients send; a client that is told `Connection: close` would send its
next request elsewhere, and ends.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from PIL import Image

from benchmarks import measure
from benchmarks.sample_photographs import photographs
from benchmarks.serving.serve_contenders import Clients, server, write_free_model

REQUESTS, MEMORY_CLIENTS, STEPS = 20_000, 16, 5
STOPS, STOP_CLIENTS = 20, 32
_LONGEST_S = 60.0
METHOD = (
    "A free model on the CPU, settings at their defaults; clients in another process. Requests are "
    "JPEGs of 533x800 pixels, a PNG, JSON with two images in base64, and a "
    f"damaged JPEG, in turns. Memory: resident, {MEMORY_CLIENTS} clients. Stops: SIGTERM while "
    f"{STOP_CLIENTS} kept-alive clients send as fast as they can; lost is a request without an "
    "answer."
)


def write_bodies(folder: Path) -> None:
    """One file for each kind of body."""
    folder.mkdir()
    photos = photographs(533, 800)
    for number, photo in enumerate(photos):
        (folder / f"{number}.jpg").write_bytes(photo)
    png = io.BytesIO()
    with Image.open(io.BytesIO(photos[0])) as image:
        image.save(png, "PNG", compress_level=1)
    (folder / "image.png").write_bytes(png.getvalue())
    (folder / "cut.damaged").write_bytes(photos[0][: len(photos[0]) // 2])
    instances = [base64.b64encode(photo).decode() for photo in photos[:2]]
    (folder / "two.json").write_text(json.dumps({"instances": instances}))


def resident_megabytes(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(folder: Path, model: Path, clients: Clients) -> list[list[object]]:
    """Resident memory after each part of the requests."""
    with server(model) as ready:
        rows: list[list[object]] = [[0, resident_megabytes(ready.process)]]
        sent, step = 0, REQUESTS // STEPS
        while sent < REQUESTS:
            goal = min(REQUESTS, (sent // step + 1) * step)
            while sent < goal:
                sent += len(clients.send(ready, folder, MEMORY_CLIENTS, 2.0).seconds)
            rows.append([sent, resident_megabytes(ready.process)])
    return rows


def stops(folder: Path, model: Path, clients: Clients) -> list[list[object]]:
    """Returns what each stop lost."""
    rows: list[list[object]] = []
    for number in range(STOPS):
        with server(model) as ready:
            clients.start(ready, folder, STOP_CLIENTS, _LONGEST_S)
            # Not always at the same point of the requests.
            time.sleep(0.5 + 0.037 * number)
            os.kill(ready.process, signal.SIGTERM)
            started = time.monotonic()
            sent = clients.finish()
            told = time.monotonic() - started
        rows.append([number + 1, len(sent.seconds), sent.lost, told, time.monotonic() - started])
    return rows


def main() -> None:
    """Measure, and write the page."""
    with tempfile.TemporaryDirectory() as name, closing(Clients()) as clients:
        folder = Path(name, "bodies")
        write_bodies(folder)
        model = write_free_model(Path(name, "run"))
        grown = memory(folder, model, clients)
        stopped = stops(folder, model, clients)
    lost = sum(int(str(row[2])) for row in stopped)
    header = ("stop", "answers", "lost", "all clients told after, s", "ended after, s")
    tables = [
        measure.table(("requests", "resident, MB"), grown),
        f"{lost} lost of {STOPS} stops:\n\n{measure.table(header, stopped)}",
    ]
    title = "Serving for long, and stopping"
    page = measure.write("serving-endurance", "serve", title, METHOD, tables, ("uvicorn",))
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
