"""The model behind the HTTP server: its workers, its warm-up, and the answer to one request."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

import custom_op
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import usable_cores
from entry_point.config.serve_config import ServerConfig
from entry_point.contract.program import UserError
from entry_point.model_folder import Model, load_model
from entry_point.serving import formats
from entry_point.serving.batching import Batcher
from entry_point.serving.formats import RequestError
from entry_point.serving.program import as_program
from entry_point.serving.request_images import Photo, RequestImage, RequestImages, numbered
from entry_point.serving.serving_metrics import ServingMetrics

logger = logging.getLogger(__name__)

_MOST_WORKERS = 8
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MAX_WAIT_S = 0.002
"""How long an image that finds the workers busy may wait for others to share its batch."""
MAX_QUEUE = 256
"""Requests that may wait."""
MAX_INSTANCES = 1000
"""Images in one request."""
DEFAULT_ACCEPT = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
"""SageMaker's variable: the format of the answers to requests that accept any."""
# Larger texts and forms are parsed in a thread. It shares the GIL with the event loop: /ping waits
# less, but it waits.
_PARSED_AT_ONCE = 2**16


class ModelService:
    """Loads a model folder and answers requests with it. Nothing is ready before `load` returns."""

    def __init__(self, folder: Path, config: ServerConfig) -> None:
        self.config, self._folder = config, folder
        self.is_ready = False
        self.unfinished: str | None = None
        """What is said of a model that a stopped job left."""
        self._default_accept = os.environ.get(DEFAULT_ACCEPT) or formats.JSON
        _check_accept(self._default_accept)
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self._gpus, self._max_batch = gpus, config.max_batch or (32 if gpus else 8)
        self.metrics = ServingMetrics(lambda: self._batcher.waiting)
        self._batcher = Batcher(
            max_batch=self._max_batch,
            max_wait_s=MAX_WAIT_S,
            on_batch=self.metrics.batch,
        )
        self._images: RequestImages | None = None
        self._unanswered = 0
        self._formats: Sequence[str] = ()

    def load(self) -> None:
        """Load, start the workers and warm them up. Raises UserError."""
        try:
            workers = self._workers()
            self._batcher.start(workers)
        except custom_op.BuildError as error:
            raise UserError(*str(error).splitlines()) from error
        where = f"{self._gpus} GPUs" if self._gpus else f"the CPU, {usable_cores()} cores"
        logger.info("%d workers on %s", len(workers), where)
        if self.unfinished is not None:
            logger.warning("%s", self.unfinished)
        # What loading made stays: the garbage collector need not look through it again.
        gc.freeze()
        self.is_ready = True

    def stop(self, patience_s: float) -> bool:
        """End the workers; returns whether all ended in time."""
        ended = self._batcher.stop(patience_s)
        return (self._images is None or self._images.stop()) and ended

    def _workers(self) -> list[_Predictor]:
        count = self.config.workers or self._gpus or min(usable_cores(), _MOST_WORKERS)
        places = [number % self._gpus if self._gpus else None for number in range(count)]
        custom_op.load()
        # Workers share a model.
        predictors = {gpu: self._predictor(gpu) for gpu in set(places)}
        model = predictors[places[0]].model
        self.unfinished = model.unfinished
        self._images = RequestImages(
            model.image_size, model.resize, self.config, usable_cores(), model.crop
        )
        self._formats = formats.formats_of(model.kind)
        self._images.warm_up()
        return [predictors[gpu] for gpu in places]

    def _predictor(self, gpu: int | None) -> _Predictor:
        device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        dtype = _DTYPES[self.config.precision]
        model = as_program(load_model(self._folder, device))
        return _Predictor(model, dtype, self._max_batch)

    async def answer(self, body: bytearray, content_type: str, accept: str) -> tuple[Any, str]:
        """The content of the answer, and its type. Raises RequestError."""
        if self._unanswered >= MAX_QUEUE + self._batcher.at_once:
            full = f"the queue is full: {MAX_QUEUE} requests wait; try again later"
            raise RequestError(503, full)
        self._unanswered += 1
        try:
            return await self._answer(body, content_type, accept)
        finally:
            self._unanswered -= 1

    async def _answer(self, body: bytearray, content_type: str, accept: str) -> tuple[Any, str]:
        accept = accept if accept.strip() not in ("", "*/*") else self._default_accept
        kind = formats.choose_format(accept, self._formats)
        predictions = await self._predict(await self._parse(body, content_type))
        return formats.format_predictions(predictions, kind), kind

    async def _parse(self, body: bytearray, content_type: str) -> list[bytes | bytearray]:
        instances = await _parse(body, content_type)
        if len(instances) > MAX_INSTANCES:
            must = f"the body: must have at most {MAX_INSTANCES} images"
            raise RequestError(413, f"{must}, has {len(instances)}")
        return instances

    async def _predict(self, contents: Sequence[bytes | bytearray]) -> list[dict[str, Any]]:
        """The prediction of each image; raises the first one's exception.

        An image joins a batch once it is decoded, so that no other waits for its decoding.
        """
        assert self._images is not None
        images = await self._images.check(contents)
        # One request is decoded a few images ahead, whatever its size: others get their turn.
        ahead, decoding = (
            asyncio.Semaphore(2 * self._max_batch),
            asyncio.Semaphore(self._images.share),
        )

        async def predict(number: int, image: RequestImage) -> dict[str, Any]:
            assert self._images is not None
            async with ahead:
                async with decoding:
                    try:
                        photo = await self._images.decode(image)
                    except RequestError as error:
                        raise numbered(error, number) from error
                prediction: dict[str, Any] = await asyncio.wrap_future(self._batcher.submit(photo))
                return prediction

        answers = await asyncio.gather(
            *(predict(number, image) for number, image in enumerate(images)),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return cast(list[dict[str, Any]], answers)


class _Predictor:
    """Decoded images -> predictions, on one device; any number of workers may call it."""

    def __init__(self, model: Model, dtype: torch.dtype, max_batch: int) -> None:
        self.model, self._dtype, self._max_batch = model, dtype, max_batch
        self._cores = usable_cores()

    def __call__(self, photos: Sequence[Photo], at_work: int) -> list[dict[str, Any]]:
        """The prediction of each image."""
        # Of this thread's calls; takes less than a microsecond.
        torch.set_num_threads(max(1, self._cores // at_work))
        batch = torch.stack([photo.view.movedim(0, -1) for photo in photos]).movedim(-1, 1)
        is_half = self._dtype == torch.bfloat16
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=is_half):
            found = self.model.predict(batch)
        sizes = [(photo.height, photo.width) for photo in photos]
        return formats.describe(found, self.model, sizes)

    def warm_up(self) -> None:
        """Answer what real requests may be like: one image, and a full batch."""
        side = self.model.image_size
        photo = Photo(torch.zeros(3, side, side, dtype=torch.uint8), side, side)
        for count in (1, self._max_batch, 1):
            self([photo] * count, 1)


def _check_accept(default: str) -> None:
    try:
        formats.choose_format(default, formats.TEXTS)
    except RequestError as error:
        must = f"must be one of {', '.join(formats.TEXTS)}"
        raise ConfigError(DEFAULT_ACCEPT, default, must) from error


async def _parse(body: bytearray, content_type: str) -> list[bytes | bytearray]:
    if len(body) <= _PARSED_AT_ONCE or formats.is_image(body, content_type):
        return formats.read_instances(body, content_type)
    return await asyncio.to_thread(formats.read_instances, body, content_type)
