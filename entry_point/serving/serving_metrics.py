"""What the server counts: for its log and, in Prometheus' text format, for /metrics.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
_KEPT_LATENCIES = 10_000


class _Histogram:
    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        self._name, self._meaning, self._bounds = name, meaning, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self._name} {self._meaning}"
        yield f"# TYPE {self._name} histogram"
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self._name}_bucket{{le="{bound}"}} {total}'
        yield f"{self._name}_sum {self._sum:.6f}"
        yield f"{self._name}_count {total}"


class ServingMetrics:
    """Counts requests and batches, in any thread."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._statuses: Counter[int] = Counter()
        self._seconds = _Histogram(
            "serve_request_seconds", "Time from a request's headers to its answer.", _SECONDS
        )
        self._batches = _Histogram("serve_batch_images", "Images per batch.", _IMAGES)
        self._latencies: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self._logged: Counter[str] = Counter()

    def request(self, status: int, seconds: float) -> None:
        """Count one answered request of /invocations."""
        with self._lock:
            self._statuses[status] += 1
            self._seconds.add(seconds)
            self._latencies.append(seconds)

    def batch(self, images: int) -> None:
        """Count one batch that the model computed."""
        with self._lock:
            self._batches.add(images)
            self._logged.update(batches=1, images=images)

    def page(self) -> str:
        """All metrics in Prometheus' text format."""
        with self._lock:
            lines = ["# HELP serve_requests_total Answered requests.",
                     "# TYPE serve_requests_total counter"]  # fmt: skip
            for status, count in sorted(self._statuses.items()):
                lines.append(f'serve_requests_total{{status="{status}"}} {count}')
            lines += [*self._seconds.lines(), *self._batches.lines()]
        lines += ["# HELP serve_queue_requests Requests that wait for the model.",
                  "# TYPE serve_queue_requests gauge",
                  f"serve_queue_requests {self._waiting()}"]  # fmt: skip
        return "\n".join(lines) + "\n"

    def log_line(self) -> str | None:
        """Numbers since the previous line; None if there was no request."""
        with self._lock:
            if not self._latencies:
                return None
            ordered = sorted(self._latencies)
            batches, images = self._logged["batches"], self._logged["images"]
            failed = sum(n for status, n in self._statuses.items() if status >= 400)
            requests = sum(self._statuses.values())
            counts = Counter(requests=requests, errors=failed)
            new = {name: counts[name] - self._logged[f"last {name}"] for name in counts}
            self._logged = Counter({f"last {name}": count for name, count in counts.items()})
            self._latencies.clear()
        ms = {
            p: 1e3 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)
        }
        latency = " ".join(f"p{p}_ms={value:.1f}" for p, value in ms.items())
        mean = images / batches if batches else 0.0
        return f"requests={new['requests']} errors={new['errors']} {latency} batch_mean={mean:.1f}"
