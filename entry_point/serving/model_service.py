"""The model behind the HTTP server, and the way of a request through its threads.

A thread of `DecodingThreads` takes the images out of a request's body and decodes them, one after
another. Each joins a batch at once, which a thread of `Batcher` computes. The one that computes the
last image writes the answer. The server's event loop hears of that only.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import custom_op
from entry_point.config.serve_config import DEFAULT_ACCEPT, ServerConfig
from entry_point.job.cores import usable_cores
from entry_point.job.program import UserError, counted
from entry_point.model_folder import WEIGHTS, Model, ModelError, load_model
from entry_point.serving import formats
from entry_point.serving.batching import Batcher
from entry_point.serving.formats import Accepted, Instances, RequestError
from entry_point.serving.request_images import (
    DecodingThreads,
    ImageDecoder,
    Photo,
    RequestImage,
    check_images,
    numbered,
)
from entry_point.serving.serving_metrics import ServingMetrics

logger = logging.getLogger(__name__)

_MOST_WORKERS = 8
MAX_WAIT_S = 0.002
"""How long an image may wait for others to share its batch, unless its request is the only one."""
MAX_QUEUE = 256
"""Requests that may wait."""


class ModelService:
    """Loads a model folder and answers requests with it. Nothing is ready before `load` returns."""

    model: Model

    def __init__(self, folder: Path, config: ServerConfig) -> None:
        self.config, self._folder = config, folder
        self.is_ready = False
        self._default_accept = os.environ.get(DEFAULT_ACCEPT) or formats.JSON
        self._gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        max_batch = config.max_batch or (32 if self._gpus else 8)
        self.metrics = ServingMetrics(lambda: self._batcher.waiting)
        self._max_batch = max_batch
        self._batcher = Batcher(
            max_batch=max_batch, max_wait_s=MAX_WAIT_S, on_batch=self.metrics.batch
        )
        threads = max(2, usable_cores())
        self._threads = DecodingThreads(threads)
        self._most_decoding = threads // 2
        """Images of one request to decode at the same time: others find a free thread."""
        self._most_ahead = max_batch + threads
        """Images of one request that are decoded and wait for the model."""
        self._unanswered = 0

    def load(self) -> None:
        """Load, start the workers and warm them up. Raises UserError."""
        count = self.config.workers or self._gpus or min(usable_cores(), _MOST_WORKERS)
        places = [number % self._gpus if self._gpus else None for number in range(count)]
        try:
            custom_op.load()
            # Workers share a model.
            predictors = {}
            for gpu in set(places):
                device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
                model = load_model(self._folder, device)
                is_half = self.config.precision == "bf16"
                predictors[gpu] = _Predictor(
                    self._folder, model, is_half, self._max_batch, usable_cores()
                )
            self.model = predictors[places[0]].model
            self._decoder = ImageDecoder(
                self.model.image_size, self.model.resize, self.model.crop, self.model.gray_bits
            )
            self._decoder.warm_up()
            self._batcher.start([predictors[gpu] for gpu in places])
        except custom_op.BuildError as error:
            raise UserError(*str(error).splitlines()) from error
        where = (
            counted(self._gpus, "GPU")
            if self._gpus
            else f"the CPU, {counted(usable_cores(), 'core')}"
        )
        logger.info("%s on %s", counted(count, "worker"), where)
        if self.model.unfinished is not None:
            logger.warning("%s", self.model.unfinished)
        # What loading made stays: the garbage collector need not look through it again.
        gc.freeze()
        self.is_ready = True

    def stop(self, patience_s: float) -> bool:
        """End the threads; returns whether all ended in time."""
        ended = self._batcher.stop(patience_s)
        return self._threads.stop() and ended

    def answer(
        self, body: bytearray, content_type: str, accept: str
    ) -> asyncio.Future[tuple[bytes, str]]:
        """Returns the content of the answer, and its type: later, or a RequestError. Cancel it if
        nobody wants it any more. Raises RequestError."""
        if self._unanswered >= MAX_QUEUE + self._batcher.at_once:
            full = f"the queue is full: {MAX_QUEUE} requests wait; try again later"
            raise RequestError(503, full)
        if accept.strip() in ("", "*/*"):
            accept = self._default_accept
        request = _Request(formats.read_accept(accept, self.model.task.answers_png))
        self._threads.submit(partial(self._read, request, body, content_type))
        answering = asyncio.wrap_future(request.answer)
        self._unanswered += 1
        answering.add_done_callback(self._count_answered)
        return answering

    def _count_answered(self, _: object) -> None:
        self._unanswered -= 1

    def _read(self, request: _Request, body: bytearray, content_type: str) -> None:
        with request.failing():
            if request.answer.cancelled():
                return
            instances = formats.read_instances(body, content_type)
            images = check_images(instances.contents, self.config.max_payload_mb)
            request.start(instances, images)
            if len(images) == 1 and not images[0].is_large:
                self._decode(request, request.take(1, 1))
            else:
                self._decode_more(request)

    def _decode_more(self, request: _Request) -> None:
        """Have more images of the request decoded, behind those of others that wait."""
        while (number := request.take(self._most_decoding, self._most_ahead)) is not None:
            work = partial(self._decode, request, number)
            self._threads.submit(work, is_large=request.images[number].is_large)

    def _decode(self, request: _Request, number: int | None) -> None:
        assert number is not None
        with request.failing(number):
            if request.answer.done():
                return
            photo = self._decoder.decode(request.images[number])
            computing = self._batcher.submit(photo, others_come=self._unanswered > 1)
            request.decoded(computing)
            computing.add_done_callback(partial(self._computed, request, number, photo))
            self._decode_more(request)

    def _computed(
        self, request: _Request, number: int, photo: Photo, computing: Future[Tensor]
    ) -> None:
        with request.failing(number):
            if computing.cancelled():
                return
            size = photo.height, photo.width
            prediction = formats.describe(
                computing.result(), self.model, size, request.accepted.top
            )
            if request.add(number, prediction):
                self._decode_more(request)


class _Request:
    """A request at work. Several threads may work on its images."""

    def __init__(self, accepted: Accepted) -> None:
        self.accepted = accepted
        self.answer: Future[tuple[bytes, str]] = Future()
        """The content and its type."""
        self.images: Sequence[RequestImage] = ()
        self._names: Sequence[str] | None = None
        self._predictions: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._begun = self._decoding = self._missing = 0
        self._computing: list[Future[Tensor]] = []

    def start(self, instances: Instances, images: Sequence[RequestImage]) -> None:
        self.images, self._names = images, instances.names
        self._predictions, self._missing = [{} for _ in images], len(images)
        self.answer.add_done_callback(self._drop)

    def take(self, most_decoding: int, most_ahead: int) -> int | None:
        """Returns the number of the next image to decode; None if there is none, or enough are at
        work."""
        with self._lock:
            unanswered = self._begun - (len(self.images) - self._missing)
            if (
                self._begun == len(self.images)
                or self._decoding >= most_decoding
                or unanswered >= most_ahead
            ):
                return None
            self._decoding += 1
            self._begun += 1
            return self._begun - 1

    def decoded(self, computing: Future[Tensor]) -> None:
        """Note that an image waits for the model."""
        with self._lock:
            self._decoding -= 1
            self._computing.append(computing)
        if self.answer.done():  # since before it was noted
            computing.cancel()

    def add(self, number: int, prediction: dict[str, Any]) -> bool:
        """Note a prediction, and answer with the last one; returns whether more are missing."""
        named = {} if self._names is None else {"file": self._names[number]}
        with self._lock:
            self._predictions[number] = named | prediction
            self._missing -= 1
            if self._missing:
                return True
        kind = self.accepted.kind
        answer = formats.format_predictions(self._predictions, kind), kind
        with suppress(InvalidStateError):  # the client has gone
            self.answer.set_result(answer)
        return False

    @contextmanager
    def failing(self, number: int | None = None) -> Iterator[None]:
        """What is raised is the answer, with the number of the image."""
        try:
            yield
        except Exception as error:
            reason = error
            if number is not None and isinstance(error, RequestError):
                reason = numbered(error, number)
            with suppress(InvalidStateError):  # the client has gone, or another image has failed
                self.answer.set_exception(reason)

    def _drop(self, _answer: Future[tuple[bytes, str]]) -> None:
        """Spare the model what nobody waits for."""
        with self._lock:
            computing = list(self._computing)
        for each in computing:
            each.cancel()


@dataclass(frozen=True)
class _Predictor:
    """Decoded images -> answers, on one device; any number of workers may call it."""

    folder: Path
    model: Model
    is_half: bool
    max_batch: int
    cores: int

    def __call__(self, photos: Sequence[Photo], at_work: int) -> Sequence[Tensor]:
        """Returns the answer for each image, see `Model.predict`."""
        # Of this thread's calls; takes less than a microsecond.
        torch.set_num_threads(max(1, self.cores // at_work))
        batch = torch.cat([photo.view for photo in photos])
        device = self.model.device.type
        with torch.autocast(device, torch.bfloat16) if self.is_half else nullcontext():
            return self.model.predict(batch).unbind()

    def warm_up(self) -> None:
        """Answer what real requests may be like: one image, and a full batch."""
        side = self.model.image_size
        ramp = torch.linspace(0, 255, side).byte()[:, None]
        view = ramp.expand(1, side, side, 3).contiguous().movedim(-1, 1)
        photo = Photo(view, side, side)
        for count in (1, self.max_batch, 1):
            answers = self([photo] * count, 1)
        if not all(answer.isfinite().all() for answer in answers):
            message = "the model answers NaN; train it again with a lower optim.lr"
            raise ModelError(f"{self.folder / WEIGHTS}: {message}")
