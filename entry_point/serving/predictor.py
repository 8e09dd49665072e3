"""From a request's body to its answer: `Predictor.answer`, which the event loop runs.

The images of a request are decoded one after another, small ones by the threads of `_decoding`,
large ones by the single thread of `_decoding_large`. The executors bound the images in decoding
even if clients disconnect. Each decoded image then waits in `ModelQueue` for its batch.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import custom_op
from entry_point.config.serve_config import ServerConfig
from entry_point.job.cores import usable_cores
from entry_point.job.program import UserError
from entry_point.job.text import counted
from entry_point.model_folder import NOT_FINITE, WEIGHTS, Model, ModelError, load_model
from entry_point.serving.forms import PNG, Answer, RequestError, read_images, wants_png
from entry_point.serving.images import SMALL_BYTES, ImageDecoder, Photo, numbered
from entry_point.serving.model_queue import ModelQueue

logger = logging.getLogger(__name__)

_MOST_WORKERS = 8
MAX_QUEUE = 256
"""Most requests that wait for the model."""
MOST_LARGE = 64
"""Most large images that wait, a quarter of the queue; the rest is for small ones."""

Prediction = dict[str, Any]
Step = tuple[Photo | None, bool]
"""A decoded image, and whether it is the last. None: the next one is large."""


class Predictor:
    """A loaded model that answers requests."""

    model: Model

    def __init__(self, folder: Path, config: ServerConfig) -> None:
        """Load the model, start its threads, and check its answer to a sample. Raises UserError."""
        try:
            custom_op.load()
        except custom_op.BuildError as error:
            raise UserError(*str(error).splitlines()) from error
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        cores = usable_cores()
        count = config.workers or gpus or min(cores, _MOST_WORKERS)
        places = [torch.device("cuda", i) for i in range(min(count, gpus))] or [torch.device("cpu")]
        # Threads on the same device share a model.
        models = [load_model(folder, place) for place in places]
        self.model, self._is_half = models[0], config.precision == "bf16"
        if self.model.reached is not None:
            logger.info("%s: %s", folder, self.model.reached)
        self._decoder = ImageDecoder(self.model, config.max_payload_mb)
        self._decoding = ThreadPoolExecutor(max(2, cores), "decode")
        self._decoding_large = ThreadPoolExecutor(1, "decode-large")
        self._requests = self._large = 0
        max_batch = config.max_batch or (32 if gpus else 8)
        self._most_requests = MAX_QUEUE + count * max_batch
        self._most_ahead = max_batch + cores
        """Most images of one request that wait for the model."""
        self._queue = ModelQueue(max_batch, cores, lambda: self._requests, on_gpus=gpus > 0)
        copies = [partial(self._compute, models[i % len(models)]) for i in range(count)]
        sample = self._decoder.warm_up()
        self._queue.start(copies, sample)
        self._require_answer(sample, folder)
        where = counted(gpus, "GPU") if gpus else f"the CPU, {counted(cores, 'core')}"
        logger.info("%s on %s", counted(count, "worker"), where)
        # Objects made while loading live until the end: keep the garbage collector off them.
        gc.freeze()

    def _require_answer(self, sample: Photo, folder: Path) -> None:
        """Raise ModelError unless the model's answer is finite and can be written as JSON."""
        try:
            answer = self._queue.submit(sample).result()
        except RequestError as error:
            message = f"{error}; train it again with a lower optim.lr"
            raise ModelError(f"{folder / WEIGHTS}: {message}") from error
        try:
            _encoded([answer])
        except TypeError as error:
            task = self.model.config.task.name
            raise ModelError(f"{folder}: describe() of task.name={task} {error}") from error

    async def answer(self, body: bytearray, content_type: str, accept: str) -> Answer:
        """Returns the predictions for the images in `body`.

        Cancel the coroutine if the client has gone. Raises RequestError.
        """
        if self._requests >= self._most_requests:
            full = f"the queue is full: {MAX_QUEUE} requests wait; try again later"
            raise RequestError(503, full)
        computing: deque[Future[Prediction]] = deque()
        predictions: list[Prediction] = []
        step = partial(next, self._decode(body, content_type))
        self._requests += 1
        try:
            is_last = False
            while not is_last:
                photo, is_last = await _in_thread(self._decoding, step)
                if photo is None:
                    photo, is_last = await self._decode_large(step)
                    assert photo is not None
                # Not in the thread, which finishes decoding even if the client has gone.
                computing.append(self._queue.submit(photo))
                if len(computing) > self._most_ahead:
                    predictions.append(await asyncio.wrap_future(computing.popleft()))
            while computing:
                predictions.append(await asyncio.wrap_future(computing.popleft()))
        finally:
            self._requests -= 1
            for each in computing:
                each.cancel()
        if self.model.task.answers_png and len(predictions) == 1 and wants_png(accept):
            return Answer(next(v for v in predictions[0].values() if isinstance(v, bytes)), PNG)
        return Answer(_encoded(predictions))

    def _decode(self, body: bytearray, content_type: str) -> Iterator[Step]:
        """Read the images of a body, and decode one after another.

        Yields a step for each. Yields None before a large image: take the next step with
        `_decode_large`. Raises RequestError.
        """
        images = self._decoder.open(read_images(body, content_type))
        for number, image in enumerate(images):
            if image.memory > SMALL_BYTES:
                yield None, False
            try:
                photo = self._decoder.decode(image)
            except RequestError as error:
                raise numbered(error, number) from error
            yield photo, number + 1 == len(images)

    async def _decode_large(self, step: Callable[[], Step]) -> Step:
        """Decode the next image when no other large one is decoded. Raises RequestError (503)."""
        if self._large >= MOST_LARGE:
            raise RequestError(503, "too many large images at once; try again later")
        self._large += 1
        try:
            return await _in_thread(self._decoding_large, step)
        finally:
            self._large -= 1

    def _compute(self, model: Model, photos: Sequence[Photo]) -> list[Prediction | Exception]:
        """Returns the prediction of each photo, or the error in its place."""
        batch = torch.cat([photo.view for photo in photos])
        device = model.device.type
        with torch.autocast(device, torch.bfloat16) if self._is_half else nullcontext():
            answers = model.predict(batch)
        found: list[Prediction | Exception] = []
        for answer, photo in zip(answers, photos, strict=True):
            try:
                if not np.isfinite(answer.numpy()).all():
                    raise RequestError(500, NOT_FINITE)
                found.append(model.task.describe(answer, (photo.height, photo.width), None))
            except Exception as error:  # fails this photo only, not the batch of other requests
                found.append(error)
        return found


def _encoded(predictions: list[Prediction]) -> bytes:
    return msgspec.json.encode({"predictions": predictions}, enc_hook=_plain)


def _plain(value: object) -> Any:
    """Returns NumPy's and torch's numbers, which your own task may answer, as Python's."""
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        return value.tolist()
    raise TypeError(f"answers with {type(value).__name__}, which is no value of JSON")


async def _in_thread(executor: ThreadPoolExecutor, step: Callable[[], Step]) -> Step:
    return await asyncio.get_running_loop().run_in_executor(executor, step)
