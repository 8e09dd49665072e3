"""Which requests share a batch, and which wait."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from entry_point.serving.batching import Batcher

PATIENCE_S = 60
NEVER_S = 1e6


class Model:
    """Doubles numbers; a batch waits until it is let through."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.has_started = threading.Semaphore(0)
        self.may_finish = threading.Semaphore(0)
        self.at_work: list[int] = []
        self.threads: list[str] = []

    def warm_up(self) -> None:
        self.threads.append(threading.current_thread().name)

    def __call__(self, items: Sequence[Any], at_work: int) -> list[Any]:
        self.batches.append(list(items))
        self.at_work.append(at_work)
        self.threads.append(threading.current_thread().name)
        self.has_started.release()
        assert self.may_finish.acquire(timeout=PATIENCE_S)
        return [2 * item for item in items]


def batcher(model: Any, *, workers: int = 1, max_batch: int = 4, max_wait_s: float = 0) -> Batcher:
    made = Batcher(max_batch=max_batch, max_wait_s=max_wait_s, on_batch=lambda _: None)
    made.start([model] * workers)
    return made


def until_idle(queue: Batcher) -> None:
    """Returns when all workers wait: an answer is given before its worker does."""
    deadline = time.monotonic() + PATIENCE_S
    while len(queue._idle) < len(queue._threads):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_idle_server_answers_a_single_request_without_waiting_for_others() -> None:
    model = Model()
    future = batcher(model, max_wait_s=NEVER_S).submit(1)
    model.may_finish.release()
    assert future.result(PATIENCE_S) == 2


def test_requests_that_wait_share_a_batch() -> None:
    model = Model()
    queue = batcher(model)
    futures = [queue.submit(0)]
    model.has_started.acquire(timeout=PATIENCE_S)
    futures += [queue.submit(number) for number in range(1, 6)]
    model.may_finish.release(3)
    assert [future.result(PATIENCE_S) for future in futures] == [2 * n for n in range(6)]
    assert model.batches == [[0], [1, 2, 3, 4], [5]]


def test_a_request_that_found_the_server_busy_waits_for_a_full_batch() -> None:
    model = Model()
    queue = batcher(model, max_batch=2, max_wait_s=NEVER_S)
    first = queue.submit(0)
    model.has_started.acquire(timeout=PATIENCE_S)
    second = queue.submit(1)
    model.may_finish.release(2)
    assert first.result(PATIENCE_S) == 0
    assert not second.done() and len(model.batches) == 1
    assert queue.submit(2).result(PATIENCE_S) == 4
    assert second.result(PATIENCE_S) == 2
    assert model.batches == [[0], [1, 2]]


def test_an_idle_worker_waits_for_what_is_on_its_way() -> None:
    model = Model()
    model.may_finish.release()
    queue = batcher(model, workers=2, max_batch=2, max_wait_s=NEVER_S)
    until_idle(queue)
    futures = [queue.submit(0, others_come=True), queue.submit(1)]
    assert [future.result(PATIENCE_S) for future in futures] == [0, 2]
    assert model.batches == [[0, 1]]


def test_a_request_that_nobody_waits_for_is_not_computed() -> None:
    model = Model()
    queue = batcher(model)
    first = queue.submit(0)
    model.has_started.acquire(timeout=PATIENCE_S)
    dropped = queue.submit(1)
    assert queue.waiting == 1
    dropped.cancel()
    assert queue.waiting == 0
    last = queue.submit(2)
    model.may_finish.release(2)
    assert (first.result(PATIENCE_S), last.result(PATIENCE_S)) == (0, 4)
    assert model.batches == [[0], [2]]


def test_a_model_that_raises_fails_its_batch_and_goes_on() -> None:
    class Failing(Model):
        def __call__(self, items: Sequence[Any], at_work: int) -> list[Any]:
            if items == [1]:
                raise ArithmeticError("first")
            return super().__call__(items, at_work)

    model = Failing()
    model.may_finish.release()
    queue = batcher(model)
    with pytest.raises(ArithmeticError, match="first"):
        queue.submit(1).result(PATIENCE_S)
    assert queue.submit(2).result(PATIENCE_S) == 4


def test_each_worker_warms_up_in_the_thread_that_answers() -> None:
    model = Model()
    queue = batcher(model, workers=2)
    assert model.threads == ["model-0", "model-1"]
    futures = [queue.submit(number) for number in range(2)]
    model.may_finish.release(2)
    assert [future.result(PATIENCE_S) for future in futures] == [0, 2]
    assert set(model.threads[2:]) <= {"model-0", "model-1"}


def test_what_a_warm_up_raises_ends_the_start() -> None:
    class Failing(Model):
        def warm_up(self) -> None:
            raise ArithmeticError("no memory")

    with pytest.raises(ArithmeticError, match="no memory"):
        batcher(Failing())


def test_requests_that_come_one_by_one_are_answered_by_the_same_worker() -> None:
    model = Model()
    model.may_finish.release(20)
    queue = batcher(model, workers=3)
    until_idle(queue)
    for number in range(20):
        queue.submit(number).result(PATIENCE_S)
        until_idle(queue)
    assert model.threads[3:] == ["model-0"] * 20


def test_a_worker_is_told_how_many_share_the_cores() -> None:
    model = Model()
    queue = batcher(model, workers=2, max_batch=1)
    futures = []
    for number in range(2):
        futures.append(queue.submit(number))
        model.has_started.acquire(timeout=PATIENCE_S)
    futures += [queue.submit(number) for number in range(2, 6)]
    model.may_finish.release(6)
    assert [future.result(PATIENCE_S) for future in futures] == [2 * n for n in range(6)]
    assert model.at_work[:5] == [1, 2, 2, 2, 2]


def test_stopping_answers_what_waits() -> None:
    model = Model()
    queue = batcher(model)
    futures = [queue.submit(0)]
    model.has_started.acquire(timeout=PATIENCE_S)
    futures.append(queue.submit(1))
    assert not queue.stop(patience_s=0)
    model.may_finish.release(2)
    assert queue.stop(PATIENCE_S)
    assert [future.result(0) for future in futures] == [0, 2]


def test_stopping_does_not_wait_for_a_larger_batch() -> None:
    model = Model()
    model.may_finish.release()
    queue = batcher(model, workers=2, max_wait_s=NEVER_S)
    until_idle(queue)
    waits = queue.submit(0, others_come=True)
    assert queue.stop(PATIENCE_S)
    assert waits.result(0) == 0
