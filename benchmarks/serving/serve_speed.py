"""Requests per second and latency of `serve`: docs/results/serving.md.

The server runs as a process, and so do its clients, which send over HTTP as fast as they get
answers. The others are called in this process, without HTTP, one request after another: their
requests per second are the same for any number of clients.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path

# As `serve` sets it: OpenMP's idle threads would take the cores from others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np

from benchmarks import measure
from benchmarks.sample_photographs import photographs
from benchmarks.serving.serve_contenders import (
    Clients,
    Round,
    Server,
    in_process,
    plain,
    server,
    torchserve,
    write_model,
)

CLIENTS = (1, 8, 64)
SECONDS, ROUNDS = 3.5, 3
SMALL, LARGE = "533x800", "3000x4000"
SIZES = {SMALL: (533, 800), LARGE: (3000, 4000)}
PRECISIONS = ("fp32", "bf16")
OURS, PLAIN, TORCHSERVE = "this, serve, {}", "Pillow, one at a time", "TorchServe's handler"
METHOD = (
    "ResNet-18 at 224 pixels on the CPU, all but bf16 in float32, other settings at their "
    "defaults. All have OMP_WAIT_POLICY=PASSIVE, which `serve` sets. `serve` is a process with "
    "HTTP clients in another, on the same cores. The others are called in process, without HTTP, "
    "one request after another, so their requests/s hold for any number of clients. Contenders "
    f"alternate: medians of {ROUNDS} rounds of {SECONDS:g} s, latencies over all of them. CPU ms "
    "are per request, of the server's process and of the clients' process; those of the others "
    "include everything."
)
Case = tuple[str, int | None]
"""A contender and its number of clients."""
Figures = dict[Case, list[Round]]


def measure_size(
    folder: Path, model: Path, servers: dict[str, Server], clients: Clients
) -> Figures:
    """Alternating rounds with the images of `folder`."""
    others = {PLAIN: plain(model), TORCHSERVE: torchserve()}
    found: Figures = {}
    for _ in range(ROUNDS):
        for (kind, ready), count in product(servers.items(), CLIENTS):
            rounds = found.setdefault((OURS.format(kind), count), [])
            rounds.append(clients.send(ready, folder, count, SECONDS))
        for name, answer in others.items():
            rounds = found.setdefault((name, None), [])
            rounds.append(in_process(answer, folder, SECONDS))
    return found


def rate(rounds: list[Round]) -> float:
    return float(np.median([each.per_second for each in rounds]))


def latency(rounds: list[Round], percent: float) -> float:
    """In ms."""
    return float(1e3 * np.percentile(np.concatenate([each.seconds for each in rounds]), percent))


def rows(found: Figures) -> list[list[object]]:
    """The table's rows."""
    base = rate(found[PLAIN, None])
    lines: list[list[object]] = []
    for (name, count), rounds in found.items():
        cpu = float(np.median([each.cpu_ms for each in rounds]))
        client = float(np.median([each.client_cpu_ms for each in rounds]))
        speed = [rate(rounds), rate(rounds) / base, latency(rounds, 50), latency(rounds, 99)]
        where: list[object] = ["in process", ""] if count is None else [count, client]
        lines.append([name, where[0], *speed, cpu, where[1]])
    return lines


def first_requests(folder: Path, model: Path, clients: Clients) -> list[list[object]]:
    """The first request after /ping answers 200, and the median of the next ones, in ms."""
    lines: list[list[object]] = []
    for number in range(ROUNDS):
        with server(model) as ready:
            seconds = clients.send(ready, folder, 1, 2).seconds
        median = float(np.median(seconds[1:]))
        lines.append([number + 1, 1e3 * seconds[0], 1e3 * median, seconds[0] / median])
    return lines


def goals(small: Figures, starts: list[list[object]]) -> list[list[object]]:
    """Each goal of the default precision on small photographs, and what was measured."""
    ours = OURS.format("fp32")
    speedup = rate(small[ours, 64]) / rate(small[PLAIN, None])
    alone, others = latency(small[ours, 1], 99), latency(small[PLAIN, None], 99)
    first = max(float(str(line[-1])) for line in starts)
    limit = f"at most the plain way's {others:.3g}"
    return [
        ["64 clients: of the plain way's requests/s", "at least 2", speedup, _said(speedup >= 2)],
        ["1 client: p99, ms", limit, alone, _said(alone <= others)],
        ["first request: of the median", "at most 2", first, _said(first <= 2)],
    ]


def _said(holds: bool) -> str:
    return "met" if holds else "NOT MET"


def draw(found: dict[str, Figures]) -> None:
    """The plot: wall-clock milliseconds per request, at 64 clients."""
    values = {
        f"{name}, {size}": 1e3 / rate(rounds)
        for size, figures in found.items()
        for (name, count), rounds in figures.items()
        if count in (CLIENTS[-1], None)
    }
    title = f"{CLIENTS[-1]} clients, ResNet-18 on {os.cpu_count()} CPUs"
    measure.bars("serving", title, "ms per request", values)


def main() -> None:
    """Measure, and write the page and its plot."""
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        model = write_model(Path(name, "run"))
        clients = running.enter_context(closing(Clients()))
        folders = {title: Path(name, title) for title in SIZES}
        for title, folder in folders.items():
            folder.mkdir()
            for number, photo in enumerate(photographs(*SIZES[title])):
                (folder / f"{number}.jpg").write_bytes(photo)
        starts = first_requests(folders[SMALL], model, clients)
        servers = {kind: running.enter_context(server(model, kind)) for kind in PRECISIONS}
        for title, folder in folders.items():
            found[title] = measure_size(folder, model, servers, clients)
    draw(found)
    header = ("contender", "clients", "requests/s", "x plain", "p50, ms", "p99, ms",
              "CPU ms", "clients' CPU ms")  # fmt: skip
    tables = [
        f"JPEGs of {title} pixels:\n\n{measure.table(header, rows(figures))}"
        for title, figures in found.items()
    ]
    started = ("start", "first request, ms", "median of the next, ms", "ratio")
    tables.append(measure.table(started, starts))
    tables.append(measure.table(("float32", "goal", "measured", ""), goals(found[SMALL], starts)))
    packages = ("uvicorn", "torchserve", "pillow")
    sys.stdout.write(measure.write("serving", "serve", "Serving", METHOD, tables, packages))


if __name__ == "__main__":
    main()
