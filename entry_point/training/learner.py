"""The model and everything that changes it: optimizer, schedule, averaged weights, one step."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.profiler import record_function

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.config.train_config import TrainConfig, TrainerConfig
from entry_point.job.devices import Devices, HostCopy
from entry_point.job.text import listed
from entry_point.training.augmentation import BatchAugmentation, seed_step
from entry_point.training.averaged_weights import AveragedWeights
from entry_point.training.checkpoints import infinite_weights, load_state
from entry_point.training.model_checks import (
    Ending,
    differ,
    explaining_shapes,
    forgets,
    load_again,
    refuse_late_weights,
    refuse_other_model,
    switch_to_training,
    unregistered,
)
from entry_point.training.models import build_again, build_model, checkpoint_gradients, is_own
from entry_point.training.optim import build_optimizer, rate_factor
from entry_point.training.tasks.task import Task

logger = logging.getLogger(__name__)

_GRAPHS_OF_A_SIZE = 8
"""torch's default limit. One size may need several graphs: pieces of a batch differ in length."""


class Learner:
    """Trains a model on one rank.

    Randomness inside a step (dropout, MixUp) is keyed by (seed, step, rank), so a resumed run draws
    the same numbers as an uninterrupted one.
    """

    def __init__(
        self,
        config: TrainConfig,
        devices: Devices,
        task: Task,
        steps_per_epoch: int,
        channels: Path,
    ) -> None:
        self._seed, self._optim, self._devices = config.trainer.seed, config.optim, devices
        self._task, self._steps_per_epoch = task, steps_per_epoch
        torch.manual_seed(config.trainer.seed)
        size = config.data.image_size
        model = build_model(config.model, task.outputs, channels, size, task.names)
        self.infinite = infinite_weights(model.state_dict())
        """Names of the initial weights that hold NaN or infinity, for `Checkpoints`."""
        if config.model.gradient_checkpointing:
            checkpoint_gradients(model, config.model.name)
        model = model.to(memory_format=torch.channels_last)
        self.model = model.to(devices.device)
        switch_to_training(config.model.name, self.model)
        decay = config.optim.ema_decay
        self.ema = None if decay is None else AveragedWeights(self.model, decay)
        self.optimizer = build_optimizer(config.optim, self.model, devices.device)
        factor = rate_factor(config.optim, steps_per_epoch, config.trainer.epochs)
        self.schedule = LambdaLR(self.optimizer, factor)
        self._augment = BatchAugmentation(config, task)
        mode = config.trainer.compile
        forward = self.model if mode is None else _compiled(self.model, mode, config.data)
        self._forward = _wrap_in_ddp(forward, devices, config.trainer)
        self._no_sync: Callable[[], AbstractContextManager[None]] = nullcontext
        if isinstance(self._forward, DistributedDataParallel):
            self._no_sync = self._forward.no_sync
        self._name, self._is_compiled = config.model.name, mode is not None
        self._is_progressive = bool(config.data.progressive)
        self._weights: dict[str, torch.Size] | None = {
            name: value.shape for name, value in self.model.state_dict().items()
        }
        """Shapes of the weights; None after the first batch."""
        self._endings: list[Ending] = []
        again = partial(build_again, config.model, task.outputs, size)
        self._build_again = again if is_own(config.model) else None
        self._forgets: torch.Tensor | None = None
        """bool `()`: a new model with the same weights answers differently; None: not compared."""
        self._all_used = devices.world_size > 1 and not config.trainer.find_unused_parameters
        self._trained = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        scales = devices.autocast_dtype is torch.float16  # only fp16 needs it
        self._scaler = torch.amp.GradScaler(devices.device.type, enabled=scales)
        if scales:
            # The scaler usually skips the first steps, until it has found the scale.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        self._lr = 0.0
        self._norm: torch.Tensor | None = None

    @property
    def exported(self) -> nn.Module:
        """The model that is evaluated and exported: with `optim.ema_decay`, the average."""
        return self.model if self.ema is None else self.ema.model

    def loss(self, images: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        """Compute one batch's gradients, in `optim.accumulate` pieces; returns its mean loss.

        Images are those of a DeviceBatch.
        """
        seed_step(self._devices, self._seed, step)
        images, labels = self._augment(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        count = self._optim.accumulate
        pieces = list(zip(images.chunk(count), labels.chunk(count), strict=True))
        total = torch.zeros((), device=images.device)
        for number, (some_images, some_labels) in enumerate(pieces, 1):
            # Ranks exchange gradients once per batch, in its last piece.
            is_last = number == len(pieces)
            with nullcontext() if is_last else self._no_sync():
                with record_function("forward"):
                    with self._devices.autocast():
                        outputs = self._run_forward(some_images)
                    share = len(some_labels) / len(labels)
                    loss = self._task.loss(outputs.float(), some_labels) * share
                with record_function("backward"):
                    self._scaler.scale(loss).backward()
            total += loss.detach()
        if self._all_used:  # DDP waits for the gradients of all parameters
            refuse_unused(self._name, [name for name, p in self._trained if p.grad is None])
        if self._weights is not None:
            refuse_late_weights(self._name, self._weights, self.model)
            self._weights, self._endings = None, [Ending(outputs)]
            # A compiled model would be compiled again, and progressive sizes are for training only.
            if not self._is_compiled and not self._is_progressive:
                self._check_in_evaluation(some_images, step)
        return total

    def _check_in_evaluation(self, images: torch.Tensor, step: int) -> None:
        """Record how the model's answers end in evaluation mode and, for a model of your own,
        whether a new one with the same weights answers the same; `record` reports both."""
        models = [self.model]
        if self._build_again is not None:
            new = self._build_again().to(memory_format=torch.channels_last)
            models.append(new.to(images.device))
            load_again(self._name, models[-1], self.model.state_dict())
        answers = []
        for model in models:
            model.eval()
            seed_step(self._devices, self._seed, step)  # the model may use random numbers
            with torch.no_grad(), self._devices.autocast(), explaining_shapes(model, images):
                answers.append(model(images))
        self._endings.append(Ending(answers[0]))
        self._forgets = differ(answers[0], answers[-1])
        self.model.train()

    def _run_forward(self, images: torch.Tensor) -> torch.Tensor:
        size_key = "data.progressive" if self._is_progressive else "data.image_size"
        with explaining_shapes(self.model, images, size_key):
            try:
                outputs: torch.Tensor = self._forward(images)
            except RuntimeError:
                if self._is_compiled:
                    with torch.no_grad():
                        self.model(images)  # raises the model's error, clearer than the compiler's
                raise
        return outputs

    def update(self) -> None:
        """Apply the gradients to the weights."""
        with record_function("optimizer"):
            self._scaler.unscale_(self.optimizer)
            if (limit := self._optim.clip_norm) is not None:
                self._norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
            self._scaler.step(self.optimizer)
            self._scaler.update()
            self._lr = float(self.optimizer.param_groups[0]["lr"])
            self.schedule.step()
            if self.ema is not None:
                self.ema.update()

    def record(self) -> dict[str, float]:
        """Returns the last step's values for the log: the learning rate, and the norm of the
        gradients before clipping, if it is finite. Waits for the device.

        The first call warns of a model whose outputs are no logits, and of tensors that the loss
        trains but that are no parameters of the model. Raises ConfigError for a model that no
        program could load.
        """
        if self._endings:
            if learning := unregistered(self._task, self.model):
                logger.warning(
                    "the loss has gradients for %s, which no optimizer gets and no file keeps; "
                    "hold them in the model, as nn.Parameter or in an nn.ModuleList",
                    listed(learning),
                )
            in_training, *others = (each.describe(self._task) for each in self._endings)
            in_evaluation = [f"in evaluation it {each}" for each in others if each]
            if problem := in_training or " ".join(in_evaluation):
                logger.warning("model.name=%s: %s", self._name, problem)
            self._endings = []
            if self._forgets is not None and HostCopy(self._forgets).wait():
                raise forgets(self._name)
        norm = self._norm
        if norm is None:
            weights = self.model.parameters()
            norm = nn.utils.get_total_norm(p.grad for p in weights if p.grad is not None)
        value = float(HostCopy(norm).wait())
        found = {"grad_norm": float(f"{value:.6g}")} if math.isfinite(value) else {}
        return {"lr": self._lr, **found}

    @property
    def statistics_steps(self) -> int:
        """Number of an epoch's last batches that `measure_statistics` needs."""
        measures = self.ema is not None and self.ema.has_statistics
        return statistics_steps(self._steps_per_epoch) if measures else 0

    def measure_statistics(self, batches: Iterable[torch.Tensor], first_step: int) -> None:
        """Measure the batch statistics of the averaged weights, before they are evaluated.

        `batches` are the images of DeviceBatches, from that of step `first_step` on.
        """
        if self.ema is None or not self.ema.has_statistics:
            return
        with self._devices.autocast():
            self.ema.measure_statistics(self._augmented(batches, first_step))

    def _augmented(
        self, batches: Iterable[torch.Tensor], first_step: int
    ) -> Iterator[torch.Tensor]:
        for step, images in enumerate(batches, first_step):
            seed_step(self._devices, self._seed, step)
            yield self._augment.own(images)

    def synchronize_buffers(self) -> None:
        """Copy the first rank's batch statistics to every rank; checkpoints have the first's."""
        if self._devices.world_size > 1:
            averaged = [] if self.ema is None else self.ema.model.buffers()
            for buffer in (*self.model.buffers(), *averaged):
                dist.broadcast(buffer, 0)

    def state(self) -> dict[str, Any]:
        """Returns the state that a checkpoint keeps."""
        return {
            "model": self.model.state_dict(),
            **({} if self.ema is None else self.ema.state()),
            "head": self._task.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self._scaler.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; other keys are ignored."""
        self.load_weights(state)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        # The saved learning rates are of a schedule for the saved run's `trainer.epochs`.
        rates = zip(self.schedule.base_lrs, self.schedule.lr_lambdas, strict=True)
        for group, (peak, factor) in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = peak * factor(self.schedule.last_epoch)
        if state["scaler"]:  # empty if the saved run had another precision
            self._scaler.load_state_dict(state["scaler"])

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load weights, averages and the task's head from what `state` returned: a head of labels
        that have changed since would have another scale.

        Raises ConfigError if `state` is of another model.
        """
        state = {"head": self._task.head.state_dict(), **state}  # version 1 saved no head
        refuse_other_model(self._name, state, self.state())
        load_state(self.model, state["model"])
        self._task.head.load_state_dict(state["head"])
        if self.ema is not None:
            self.ema.load_state(state)


def statistics_steps(steps_per_epoch: int) -> int:
    """Returns the number of an epoch's last batches that batch statistics are measured on.

    Each batch costs a forward pass, a third of a step. The noise of the statistics falls with the
    square root of their number. On scikit-learn's digits, in batches of 8 and 32, averaged weights
    lose 1 to 2 points of accuracy with one batch, 0.4 with two, 0.1 to 0.3 with four, and as little
    with 16 as with 32. So an eighth of the steps is used, for 4 % of the epoch's time, within 4 to
    16 batches, and never more than half of the steps.
    """
    return min(max(4, min(16, steps_per_epoch // 8)), (steps_per_epoch + 1) // 2)


def refuse_unused(model: str, names: Sequence[str]) -> None:
    """Raise ConfigError if `names`, the parameters without gradients after a step, has any."""
    if not names:
        return
    layers = sorted({name.rpartition(".")[0] or name for name in names})
    message = (
        f"a step does not use {listed(names)}, whose gradients several ranks exchange; remove what "
        f"is unused, or freeze it with optim.groups={{{layers[0]}*:{{lr:0}}}}; if steps skip "
        "layers at random, set trainer.find_unused_parameters=true"
    )
    raise ConfigError("model.name", model, message)


def _wrap_in_ddp(model: nn.Module, devices: Devices, trainer: TrainerConfig) -> nn.Module:
    """Wrap the model so that ranks exchange gradients."""
    if devices.world_size == 1:
        return model
    ids = [devices.device] if devices.device.type == "cuda" else None
    # By default DDP regroups gradients after a process's first step. That changes the order in
    # which three or more ranks' gradients are summed, so a resumed run would differ.
    fixed = trainer.deterministic and devices.world_size > 2
    # Buffers may affect training, except for BatchNorm's statistics.
    modules = [module for module in model.modules() if not isinstance(module, _BatchNorm)]
    reads_buffers = any([*module.buffers(recurse=False)] for module in modules)
    with warnings.catch_warnings():
        # torch 2.15 renames `broadcast_buffers`; 2.11 does not know the new name.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            model,
            device_ids=ids,
            broadcast_buffers=reads_buffers,
            gradient_as_bucket_view=True,
            find_unused_parameters=fixed or trainer.find_unused_parameters,
        )


def _compiled(model: nn.Module, mode: str, data: DataConfig) -> nn.Module:
    """Compile the model, once for each image size of `data.progressive`.

    `model` itself, which is evaluated and saved, stays uncompiled. DDP wraps the compiled model:
    torch 2.15 compiles nothing of a model that is wrapped first. The compiler still splits its
    graphs where DDP exchanges gradients.
    """
    sizes = {size for _, size in data.progressive}
    limits = torch._dynamo.config
    # Beyond this limit, 8 by default, torch runs further sizes uncompiled.
    limits.recompile_limit = max(limits.recompile_limit, _GRAPHS_OF_A_SIZE * len(sizes))
    # Silences torch's traceback about a shape that the model does not take; our error names it.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return cast(nn.Module, torch.compile(model, dynamic=False, mode=mode))


def explain_step(error: Exception, config: TrainConfig, ranks: int) -> ConfigError | None:
    """Returns the error that names the setting which made a step fail, if it is known."""
    batch, pieces = config.trainer.batch_size, config.optim.accumulate
    if isinstance(error, torch.OutOfMemoryError):
        message = (
            f"does not fit into the GPU's memory ({str(error).partition('. ')[0]}); lower it, or "
            f"raise optim.accumulate={pieces} to compute each batch in more pieces"
        )
        return ConfigError("trainer.batch_size", batch, message)
    if "Expected more than 1 value per channel" in str(error):
        message = (
            f"is one image for each of {ranks * pieces}, ranks={ranks} x "
            f"optim.accumulate={pieces}, and this model's batch normalization needs two; set "
            f"trainer.batch_size={2 * ranks * pieces} or more"
        )
        return ConfigError(
            "trainer.batch_size", batch, message + (", or fewer pieces" * (pieces > 1))
        )
    if "find_unused_parameters=True" in str(error):
        message = (
            "the last of optim.accumulate pieces does not use all parameters that several ranks "
            "exchange; set trainer.find_unused_parameters=true"
        )
        return ConfigError("model.name", config.model.name, message)
    return None
