"""What the server counts: for /metrics, in Prometheus' text format, and for its log."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServingMetrics:
    """Counts requests and batches, in any thread. `waiting` returns the images in the queue."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        disable_created_metrics()
        self._registry = own = CollectorRegistry()
        self._requests = Counter("serve_requests", "Answered requests.", ["status"], registry=own)
        self._seconds = Histogram(
            "serve_request_seconds",
            "Time from a request's headers to its answer.",
            buckets=_SECONDS,
            registry=own,
        )
        self._batches = Histogram(
            "serve_batch_images", "Images per batch.", buckets=_IMAGES, registry=own
        )
        queue = Gauge("serve_queue_images", "Images that wait for a batch.", registry=own)
        queue.set_function(waiting)
        # Since the last line of the log.
        self._lock = threading.Lock()
        self._latencies: list[float] = []
        self._errors = 0
        self._sizes: list[int] = []

    def request(self, status: int, seconds: float) -> None:
        """Count one answered request of /invocations."""
        self._requests.labels(status).inc()
        self._seconds.observe(seconds)
        with self._lock:
            self._latencies.append(seconds)
            self._errors += status >= 400

    def batch(self, images: int) -> None:
        """Count one batch that the model computed."""
        self._batches.observe(images)
        with self._lock:
            self._sizes.append(images)

    def page(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def log_line(self) -> str | None:
        """Numbers since the previous line; None if there was no request."""
        with self._lock:
            latencies, errors, sizes = self._latencies, self._errors, self._sizes
            self._latencies, self._errors, self._sizes = [], 0, []
        if not latencies:
            return None
        percentiles = zip((50, 90, 99), np.percentile(latencies, (50, 90, 99)), strict=True)
        latency = " ".join(f"p{p}_ms={1e3 * value:.1f}" for p, value in percentiles)
        mean = np.mean(sizes) if sizes else 0.0
        return f"requests={len(latencies)} errors={errors} {latency} batch_mean={mean:.1f}"
