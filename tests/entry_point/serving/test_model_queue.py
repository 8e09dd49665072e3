"""Which photos share a batch, and who computes it."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
import torch

from entry_point.serving import model_queue
from entry_point.serving.images import Photo
from entry_point.serving.model_queue import ModelQueue

PATIENCE_S = 60
MAX_BATCH = 4


def photo(number: int) -> Photo:
    return Photo(torch.empty(0), number, 0)


class Copy:
    """Answers each photo with its number; waits, once told to, in each batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.started = threading.Semaphore(0)

    def __call__(self, photos: Sequence[Photo]) -> list[object]:
        self.batches.append([each.height for each in photos])
        self.threads.append(torch.get_num_threads())
        self.started.release()
        assert self.go.wait(PATIENCE_S)
        return [ValueError("13") if each.height == 13 else each.height for each in photos]


def start(
    copies: Sequence[Copy], requests: int, cores: int = 4, *, on_gpus: bool = False
) -> ModelQueue:
    """A queue whose copies are warm, and wait in their next batch until they may go on."""
    queue = ModelQueue(MAX_BATCH, cores, lambda: requests, on_gpus=on_gpus)
    queue.start(copies, photo(0))
    for copy in copies:
        assert copy.batches == [[0], [0] * MAX_BATCH, [0]]
        copy.batches.clear()
        copy.threads.clear()
        copy.started = threading.Semaphore(0)
    return queue


def hold(copy: Copy, queue: ModelQueue) -> Future[int]:
    """Have a copy compute until it may go on."""
    copy.go.clear()
    held = queue.submit(photo(100))
    assert copy.started.acquire(timeout=PATIENCE_S)
    return held


def test_what_waits_is_computed_in_batches_in_its_order() -> None:
    copy = Copy()
    queue = start([copy], requests=1)
    held = hold(copy, queue)
    futures = [queue.submit(photo(number)) for number in range(6)]
    copy.go.set()
    assert [future.result(PATIENCE_S) for future in [held, *futures]] == [100, *range(6)]
    assert copy.batches == [[100], [0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize(("requests", "batches"), [(1, [[0], [1]]), (9, [[0, 1]])])
def test_the_photo_of_the_only_request_waits_for_no_other(
    requests: int, batches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others do, for as long as MAX_WAIT_S."""
    monkeypatch.setattr(model_queue, "MAX_WAIT_S", 2.0 if requests > 1 else PATIENCE_S)
    copy = Copy()
    queue = start([copy], requests)
    first = queue.submit(photo(0))
    if requests == 1:
        assert first.result(PATIENCE_S / 2) == 0
    second = queue.submit(photo(1))
    assert [each.result(PATIENCE_S / 2) for each in (first, second)] == [0, 1]
    assert copy.batches == batches


def test_a_full_batch_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_queue, "MAX_WAIT_S", 2 * PATIENCE_S)
    copy = Copy()
    queue = start([copy], requests=1)
    held = hold(copy, queue)
    queue._at_work = lambda: 99
    futures = [queue.submit(photo(number)) for number in range(MAX_BATCH)]
    copy.go.set()
    assert [each.result(PATIENCE_S) for each in [held, *futures]] == [100, *range(MAX_BATCH)]


def test_what_was_cancelled_is_not_computed() -> None:
    copy = Copy()
    queue = start([copy], requests=1)
    hold(copy, queue)
    gone, wanted = queue.submit(photo(1)), queue.submit(photo(2))
    assert gone.cancel()
    copy.go.set()
    assert wanted.result(PATIENCE_S) == 2
    assert copy.batches == [[100], [2]]


def test_an_error_is_the_answer_of_its_photo_or_of_the_whole_batch() -> None:
    copy = Copy()
    queue = start([copy], requests=1)
    hold(copy, queue)
    bad, good = queue.submit(photo(13)), queue.submit(photo(1))
    copy.go.set()
    with pytest.raises(ValueError, match="13"):
        bad.result(PATIENCE_S)
    assert good.result(PATIENCE_S) == 1
    none = queue.submit(Photo(torch.empty(0), None, 0))  # type: ignore[arg-type]
    assert none.result(PATIENCE_S) is None
    copy.batches = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        queue.submit(photo(1)).result(PATIENCE_S)
    copy.batches = []
    assert queue.submit(photo(1)).result(PATIENCE_S) == 1


def test_copies_compute_at_the_same_time_and_share_the_cores() -> None:
    copies = [Copy(), Copy()]
    queue = start(copies, requests=2)
    for copy in copies:
        copy.go.clear()
    first = queue.submit(photo(1))
    deadline = time.monotonic() + PATIENCE_S
    while not any(copy.batches for copy in copies):
        assert time.monotonic() < deadline
    second = queue.submit(photo(2))
    for copy in copies:
        assert copy.started.acquire(timeout=PATIENCE_S)
    for copy in copies:
        copy.go.set()
    assert [first.result(PATIENCE_S), second.result(PATIENCE_S)] == [1, 2]
    assert sorted(thread for copy in copies for thread in copy.threads) == [2, 4]


def test_a_copy_that_cannot_be_warmed_up_fails_the_start() -> None:
    def fails(_photos: Sequence[Photo]) -> list[object]:
        raise MemoryError

    with pytest.raises(MemoryError):
        ModelQueue(MAX_BATCH, 4, lambda: 1).start([fails], photo(0))


def test_on_gpus_the_copies_compute_at_once_whoever_asks() -> None:
    """`at_work` is of a moment: the second request may come when the first is at work."""
    copies = [Copy(), Copy()]
    queue = start(copies, 1, on_gpus=True)
    for copy in copies:
        copy.go.clear()
    answers = [queue.submit(photo(1))]
    deadline = time.monotonic() + PATIENCE_S
    while not any(copy.batches for copy in copies):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    answers.append(queue.submit(photo(2)))
    while not all(copy.batches for copy in copies):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for copy in copies:
        copy.go.set()
    assert [answer.result(PATIENCE_S) for answer in answers] == [1, 2]
