"""The model behind the HTTP server: its workers, its warm-up, and the answer to one request."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import torch
from torch import Tensor
from torch.fx import GraphModule

import custom_op
from entry_point import inference
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import usable_cores
from entry_point.config.serve_config import ServerConfig
from entry_point.contract.program import UserError
from entry_point.inference import Model, ModelError, RequestError
from entry_point.serving.batching import Batcher, Worker
from entry_point.serving.folded_norms import fold_batch_norms
from entry_point.serving.packed_convolutions import can_pack, pack_convolutions
from entry_point.serving.precision import DTYPES, use_precision
from entry_point.serving.request_images import RequestImage, RequestImages, check_images, numbered
from entry_point.serving.serving_metrics import ServingMetrics
from entry_point.serving.user_code import Call, Hooks, own_code, replaces_prediction

logger = logging.getLogger(__name__)

_CORES_PER_MODEL = 4
"""With own hooks, each of whose workers loads a model."""
_MOST_WORKERS = 8
MAX_WAIT_S = 0.002
"""How long an image that finds the workers busy may wait for others to share its batch."""
MAX_QUEUE = 256
"""Requests that may wait."""
MAX_INSTANCES = 1000
"""Images in one request."""
DEFAULT_ACCEPT = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
"""SageMaker's variable: the format of the answers to requests that accept any."""
# Requests up to this size are parsed where they arrive, larger ones in a thread: /ping must not
# wait for them.
_PARSED_AT_ONCE = 2**16


class ModelService:
    """Loads a model folder and answers requests with it. Nothing is ready before `load` returns."""

    def __init__(self, folder: Path, config: ServerConfig) -> None:
        self.config, self._folder = config, folder
        self.is_ready = False
        self._module = own_code(folder) if config.user_code else None
        self._calls_hooks = self._module is not None and replaces_prediction(self._module)
        if self._calls_hooks and config.precision != "fp32":
            must = "the model's code/inference.py predicts by itself; choose its precision there"
            raise ConfigError("serve.precision", config.precision, must)
        self._default_accept = os.environ.get(DEFAULT_ACCEPT) or inference.JSON
        if self._module is None:
            _check_accept(self._default_accept)
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self._gpus, self._max_batch = gpus, config.max_batch or (32 if gpus else 8)
        self.metrics = ServingMetrics(self._waiting)
        self._batcher = Batcher(
            max_batch=1 if self._calls_hooks else self._max_batch,
            max_wait_s=MAX_WAIT_S,
            on_batch=self.metrics.batch,
        )
        self._images: RequestImages | None = None
        self._unanswered = 0

    def load(self) -> None:
        """Load, start the workers and warm them up. Raises UserError."""
        try:
            workers = self._workers()
            self._batcher.start(workers)
        except (ModelError, custom_op.BuildError) as error:
            raise UserError(*str(error).splitlines()) from error
        where = f"{self._gpus} GPUs" if self._gpus else f"the CPU, {usable_cores()} cores"
        logger.info("%d workers on %s", len(workers), where)
        # What loading made stays: the garbage collector need not look through it again.
        gc.freeze()
        self.is_ready = True

    def _waiting(self) -> int:
        """Requests whose images are decoded or wait."""
        return max(0, self._unanswered - self._batcher.computing)

    def stop(self, patience_s: float) -> bool:
        """End the workers; returns whether all ended in time."""
        ended = self._batcher.stop(patience_s)
        return (self._images is None or self._images.stop(0)) and ended

    def _workers(self) -> list[Worker]:
        count = self.config.workers or self._gpus or self._workers_on_cpu()
        places = [number % self._gpus if self._gpus else None for number in range(count)]
        if self._module is not None and self._calls_hooks:
            torch.set_num_threads(max(1, usable_cores() // count))
            return [Hooks(self._module, self._folder, gpu) for gpu in places]
        custom_op.load()
        # Workers share a model.
        predictors = {gpu: self._predictor(gpu) for gpu in set(places)}
        model = predictors[places[0]].model
        self._images = RequestImages(model.image_size, model.resize, self.config, usable_cores())
        self._images.warm_up()
        return [predictors[gpu] for gpu in places]

    def _workers_on_cpu(self) -> int:
        cores = usable_cores()
        return max(1, cores // _CORES_PER_MODEL) if self._calls_hooks else min(cores, _MOST_WORKERS)

    def _predictor(self, gpu: int | None) -> _Predictor:
        model = _load_on(self._folder, gpu)
        program, dtype = cast(GraphModule, model.program), DTYPES[self.config.precision]
        fold_batch_norms(program)
        if model.device.type == "cpu" and can_pack(dtype):
            pack_convolutions(program, dtype)
        return _Predictor(model, self.config, self._max_batch)

    async def answer(self, body: bytearray, content_type: str, accept: str) -> tuple[Any, str]:
        """The content of the answer, and its type. Raises RequestError, or what the hooks raise."""
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
        if self._calls_hooks:
            if not hasattr(self._module, "input_fn"):
                instances = await self._parse(body, content_type)
                await asyncio.to_thread(check_images, instances, self.config, use_operator=False)
            call = Call(body, content_type, accept)
            return _typed(await asyncio.wrap_future(self._batcher.submit(call)), accept)
        kind = accept if self._module else inference.choose_format(accept)
        predictions = await self._predict(await self._parse(body, content_type))
        if self._module is not None:
            return _typed(
                Hooks(self._module, self._folder, None).format(predictions, accept), accept
            )
        return _formatted(predictions, kind), kind

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
                        pixels = await self._images.decode(image)
                    except RequestError as error:
                        raise numbered(error, number) from error
                prediction: dict[str, Any] = await asyncio.wrap_future(self._batcher.submit(pixels))
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

    def __init__(self, model: Model, config: ServerConfig, max_batch: int) -> None:
        self.model, self._max_batch = model, max_batch
        self._computing = use_precision(model, config.precision)
        self._cores = usable_cores()

    def __call__(self, images: Sequence[Tensor], at_work: int) -> list[dict[str, Any]]:
        """The prediction of each image, uint8 `(3, image_size, image_size)`."""
        # Of this thread's calls; takes less than a microsecond.
        torch.set_num_threads(max(1, self._cores // at_work))
        batch = torch.stack([image.movedim(0, -1) for image in images]).movedim(-1, 1)
        with self._computing():
            found = inference.predict_batch(batch, self.model)
        return inference.describe(found, self.model)

    def warm_up(self) -> None:
        """Answer what real requests may be like: one image, and a full batch."""
        side = self.model.image_size
        image = torch.zeros(3, side, side, dtype=torch.uint8)
        for count in (1, self._max_batch, 1):
            self([image] * count, 1)


def _check_accept(default: str) -> None:
    try:
        inference.choose_format(default)
    except RequestError as error:
        kinds = (inference.JSON, inference.JSON_LINES, inference.CSV)
        raise ConfigError(DEFAULT_ACCEPT, default, f"must be one of {', '.join(kinds)}") from error


def _load_on(folder: Path, gpu: int | None) -> Model:
    context = SimpleNamespace(system_properties={"gpu_id": gpu})
    return inference.model_fn(str(folder), context)


async def _parse(body: bytearray, content_type: str) -> list[bytes | bytearray]:
    parse: Callable[..., list[bytes | bytearray]] = inference.read_instances
    if len(body) <= _PARSED_AT_ONCE or inference.media_type(content_type) not in (
        inference.JSON,
        inference.JSON_LINES,
    ):
        return parse(body, content_type)
    return await asyncio.to_thread(parse, body, content_type)


def _formatted(predictions: list[dict[str, Any]], kind: str) -> Any:
    """What `inference.output_fn` writes; msgspec takes a tenth of json's time."""
    if kind == inference.JSON:
        return msgspec.json.encode({"predictions": predictions})
    if kind == inference.JSON_LINES:
        return msgspec.json.Encoder().encode_lines(predictions)
    return inference.output_fn(predictions, kind)


def _typed(content: Any, accept: str) -> tuple[Any, str]:
    """What an own `output_fn` returned: the content, or a tuple of content and type."""
    if isinstance(content, tuple):
        return content
    return content, inference.media_type(accept.split(",")[0])
