"""Requests per second and latency of `serve`: docs/results/serving.md.

Servers run as processes, and so do the clients, which send over HTTP as fast as they get answers.
The others are called in this process, without HTTP, one request after another: their requests per
second are the same for any number of clients.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
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
    export_onnx,
    in_process,
    litserve,
    plain,
    server,
    torchserve,
    write_free_model,
    write_model,
)

CLIENTS, FREE_CLIENTS = (1, 8, 64), (1, 16, 64)
SECONDS, ROUNDS = 3.5, 3
SMALL, LARGE = "533x800", "3000x4000"
SIZES = {SMALL: (533, 800), LARGE: (3000, 4000)}
PRECISIONS = ("fp32", "bf16")
OURS, PLAIN, TORCHSERVE = "this, serve, {}", "Pillow, one at a time", "TorchServe's handler"
FREE = OURS.format("free model")
LITSERVE = "LitServe"
ENGINES = {
    LITSERVE: "torch",
    f"{LITSERVE}, ONNX Runtime": "onnxruntime",
    f"{LITSERVE}, OpenVINO": "openvino",
}
METHOD = (
    "ResNet-18 at 224 pixels on the CPU, all but bf16 in float32, other settings at their "
    "defaults. All have OMP_WAIT_POLICY=PASSIVE, which `serve` sets. `serve` and LitServe are "
    "processes with HTTP clients in another, on the same cores; LitServe gets the images as its "
    "documentation sends them, in base64, decodes them with Pillow and has `serve`'s batches. It "
    "computes the model with torch, or with ONNX Runtime or OpenVINO from the ONNX file that torch "
    "exports, in as many threads as there are cores; ONNX Runtime's do not spin. The "
    "others are called in process, without HTTP, one request after another, so their requests/s "
    "hold for any number of clients. Contenders "
    f"alternate: medians of {ROUNDS} rounds of {SECONDS:g} s, latencies over all of them. CPU ms "
    "are per request, of the server's process and of the clients' process; those of the others "
    "include everything. The free model looks at one pixel: what is left is the server's own "
    "work, decoding and its HTTP, the latter in the thread of the event loop."
)
Case = tuple[str, int | None]
"""A contender and its number of clients."""
Figures = dict[str, float]
"""Figures by column of the tables."""
RATE, P50, P99, CPU, CLIENTS_CPU = "requests/s", "p50, ms", "p99, ms", "CPU ms", "clients' CPU ms"
EVENT_LOOP = "of these, event loop"


def figures(rounds: Sequence[Round]) -> Figures:
    """Returns the medians of the rounds, and the latencies over all of them."""
    found = {
        RATE: [one.per_second for one in rounds],
        CPU: [one.cpu_ms for one in rounds],
        EVENT_LOOP: [one.loop_cpu_ms for one in rounds],
        CLIENTS_CPU: [one.client_cpu_ms for one in rounds],
    }
    latencies = 1e3 * np.concatenate([one.seconds for one in rounds])
    percentiles = {P50: np.percentile(latencies, 50), P99: np.percentile(latencies, 99)}
    medians = {column: np.median(values) for column, values in found.items()}
    return {column: float(value) for column, value in (medians | percentiles).items()}


def alternate(contenders: Mapping[Case, Callable[[], Round]]) -> dict[Case, Figures]:
    return {case: figures(some) for case, some in measure.alternate(contenders, ROUNDS).items()}


def measure_size(
    folder: Path, model: Path, servers: dict[str, Server], clients: Clients
) -> dict[Case, Figures]:
    """Alternating rounds with the images of `folder`."""
    contenders: dict[Case, Callable[[], Round]] = {}
    for (name, ready), count in product(servers.items(), CLIENTS):
        bodies = folder / "json" if name in ENGINES else folder / "jpg"
        contenders[name, count] = partial(clients.send, ready, bodies, count, SECONDS)
    for name, answer in ((PLAIN, plain(model)), (TORCHSERVE, torchserve())):
        contenders[name, None] = partial(in_process, answer, folder / "jpg", SECONDS)
    return alternate(contenders)


def measure_free(folder: Path, model: Path, clients: Clients) -> dict[Case, Figures]:
    """Rounds of the server with a model that costs nothing."""
    with server(model) as ready:
        clients.send(ready, folder / "jpg", 4, 1)
        send = partial(clients.send, ready, folder / "jpg")
        return alternate({(FREE, count): partial(send, count, SECONDS) for count in FREE_CLIENTS})


def rows(found: Mapping[Case, Figures]) -> list[list[object]]:
    """Returns the table's rows."""
    base = found[PLAIN, None][RATE]
    lines: list[list[object]] = []
    for (name, count), one in found.items():
        clients, cpu = ("in process", "") if count is None else (count, one[CLIENTS_CPU])
        lines.append(
            [name, clients, one[RATE], one[RATE] / base, one[P50], one[P99], one[CPU], cpu]
        )
    return lines


def fastest(found: Mapping[Case, Figures]) -> str:
    """Returns which contender in float32 answers most requests per second, with any clients."""
    cases = [case for case in found if "bf16" not in case[0]]
    name, count = max(cases, key=lambda case: found[case][RATE])
    clients = "in process" if count is None else f"with {count} clients"
    return f"Most requests/s in float32: {name}, {clients}, {found[name, count][RATE]:.3g}.\n"


def first_requests(folder: Path, model: Path, clients: Clients) -> list[list[object]]:
    """Returns the first request after /ping answers 200, and the median of the next ones, in ms."""
    lines: list[list[object]] = []
    for number in range(ROUNDS):
        with server(model) as ready:
            seconds = clients.send(ready, folder / "jpg", 1, 2).seconds
        median = float(np.median(seconds[1:]))
        lines.append([number + 1, 1e3 * seconds[0], 1e3 * median, seconds[0] / median])
    return lines


def goals(
    small: Mapping[Case, Figures], free: Mapping[Case, Figures], starts: list[list[object]]
) -> list[list[object]]:
    """Returns each goal of the default precision on small photographs, and what was measured."""
    ours, plain = OURS.format("fp32"), small[PLAIN, None]
    speedup, one = small[ours, 64][RATE] / plain[RATE], small[ours, 1][P99]
    first = max(float(str(line[-1])) for line in starts)
    own, busy = free[FREE, 1][P50], free[FREE, 16]
    limit = f"at most the plain way's {plain[P99]:.3g}"
    return [
        ["64 clients: of the plain way's requests/s", "at least 2", speedup, _said(speedup >= 2)],
        ["1 client: p99, ms", limit, one, _said(one <= plain[P99])],
        ["first request: of the median", "at most 2", first, _said(first <= 2)],
        ["free model, 1 client: p50, ms", "at most 5", own, _said(own <= 5)],
        ["free model, 16 clients: event loop, ms", "at most 0.7", busy[EVENT_LOOP],
         _said(busy[EVENT_LOOP] <= 0.7)],
        ["free model, 16 clients: requests/s on 2 cores", "at least 800", busy[RATE],
         _said(busy[RATE] >= 800)],
    ]  # fmt: skip


def _said(holds: bool) -> str:
    return "met" if holds else "NOT MET"


def draw(found: Mapping[str, Mapping[Case, Figures]]) -> None:
    """The plot: wall-clock milliseconds per request, at 64 clients."""
    values = {
        f"{name}, {size}": 1e3 / one[RATE]
        for size, cases in found.items()
        for (name, count), one in cases.items()
        if count in (CLIENTS[-1], None)
    }
    title = f"{CLIENTS[-1]} clients, ResNet-18 on {os.cpu_count()} CPUs"
    measure.bars("serving", title, "ms per request", values)


def write_bodies(folder: Path, photos: Iterable[bytes]) -> None:
    """Write the photos as files, and in base64 within JSON."""
    for kind in ("jpg", "json"):
        (folder / kind).mkdir(parents=True)
    for number, photo in enumerate(photos):
        (folder / "jpg" / f"{number}.jpg").write_bytes(photo)
        document = {"instances": [base64.b64encode(photo).decode()]}
        (folder / "json" / f"{number}.json").write_text(json.dumps(document))


def main() -> None:
    """Measure, and write the page and its plot."""
    found: dict[str, dict[Case, Figures]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        model = write_model(Path(name, "run"))
        export_onnx(model)
        clients = running.enter_context(closing(Clients()))
        folders = {title: Path(name, title) for title in SIZES}
        for title, folder in folders.items():
            write_bodies(folder, photographs(*SIZES[title]))
        free = measure_free(folders[SMALL], write_free_model(Path(name, "free")), clients)
        starts = first_requests(folders[SMALL], model, clients)
        starting: dict[str, AbstractContextManager[Server]] = {
            OURS.format(kind): server(model, kind) for kind in PRECISIONS
        }
        starting |= {name: litserve(model, engine) for name, engine in ENGINES.items()}
        servers = {each: running.enter_context(start) for each, start in starting.items()}
        for title, folder in folders.items():
            found[title] = measure_size(folder, model, servers, clients)
    draw(found)
    header = ("contender", "clients", RATE, "x plain", P50, P99, CPU, CLIENTS_CPU)
    tables = [
        f"JPEGs of {title} pixels:\n\n{measure.table(header, rows(cases))}\n{fastest(cases)}"
        for title, cases in found.items()
    ]
    columns = (RATE, P50, P99, CPU, EVENT_LOOP, CLIENTS_CPU)
    of_free = [[count, *(one[column] for column in columns)] for (_, count), one in free.items()]
    tables.append(
        f"JPEGs of {SMALL} pixels, free model:\n\n{measure.table(('clients', *columns), of_free)}"
    )
    started = ("start", "first request, ms", "median of the next, ms", "ratio")
    tables.append(measure.table(started, starts))
    tables.append(
        measure.table(("float32", "goal", "measured", ""), goals(found[SMALL], free, starts))
    )
    packages = ("uvicorn", "torchserve", "litserve", "onnxruntime", "openvino", "pillow")
    measure.write("serving", "serve", "Serving", METHOD, tables, packages)


if __name__ == "__main__":
    main()
