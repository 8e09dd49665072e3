"""The training job's configuration: typed, composed by Hydra from `configs/`, checked once.

`load_train_config` raises `ConfigError` with one line for whatever is wrong: an unknown key, a
wrong type, a value out of range, a group option that does not exist. Code that gets a `TrainConfig`
checks nothing again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.checking import check_config
from entry_point.config.compose import load_config, resolved_yaml
from entry_point.config.config_errors import ConfigError, did_you_mean, shown
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.resolve import check_name
from entry_point.config.schema import (
    SETTINGS,
    TYPED_HERE,
    Bool,
    Count,
    FilePath,
    Float,
    Int,
    Positive,
    Share,
    Words,
)
from entry_point.config.task_config import TaskConfig
from entry_point.job.known_tasks import TASKS

OPTIMIZERS = (
    *("sgd", "adamw", "adadelta", "adafactor", "adagrad", "adam", "adamax", "nadam", "radam"),
    "rmsprop",
)
"""Classes of torch.optim, in lower case, that take parameter groups and a learning rate."""
SCHEDULES = ("cosine", "step")
_RESULTS = "entry_point.training.results"
LOGGERS = {
    "tensorboard": f"{_RESULTS}.tensorboard_logger.TensorBoardLogger",
    "mlflow": f"{_RESULTS}.mlflow_logger.MlflowLogger",
    "wandb": f"{_RESULTS}.wandb_logger.WandbLogger",
}
"""By their paths: each is imported once it is used."""


@dataclass(config=SETTINGS)
class ModelConfig:
    """The network and the weights it starts from."""

    name: str = "resnet18"
    """A classification model of torchvision, `timm/NAME` for one of timm, or the dotted path to
    your own callable that takes `num_classes`."""
    kwargs: dict[str, Any] = Field(default={})
    """Other arguments of the model, as in `model.kwargs.width=64`."""
    weights: FilePath | None = None
    """`pretrained`: the published weights that `make weights ARGS=NAME` fetched, from the folder or
    channel `pretrained`. Else the state dict to start from: a file, or the name of a channel that
    holds exactly one .pt, .pth, .ckpt or .safetensors file. It may be anywhere in the dicts that a
    training program saved, behind any prefix of names; a file with other objects is refused. A head
    of another size starts from scratch, and so does that of an earlier run (its model folder, or
    one of its checkpoints) with other classes or another order. The job downloads nothing.
    """
    gradient_checkpointing: Bool = False
    """Compute activations again in the backward pass instead of keeping them, to save memory. For
    timm's models, and your own that have timm's method `set_grad_checkpointing()`."""

    def __post_init__(self) -> None:
        library, _, name = self.name.rpartition("/")
        if library not in ("", "timm") or not re.fullmatch(r"\w+([.-]\w+)*", name):
            message = "must be a torchvision model's name, timm/NAME, or package.function"
            raise ConfigError("model.name", repr(self.name), message)


@dataclass(config=SETTINGS)
class GroupConfig:
    """What every optimizer takes for a group of parameters. torch checks no group's values, and
    climbs the loss at a negative rate."""

    lr: Float = Field(default=0.0, ge=0)
    weight_decay: Float = Field(default=0.0, ge=0)


@dataclass(config=SETTINGS)
class OptimConfig:
    """Optimizer, learning-rate schedule, and what blends or averages."""

    name: str = "sgd"
    """The optimizer: one of torch's in lower case, such as `sgd`, `adamw` or `rmsprop`, or the
    dotted path to your own class, which is called as in torch: `MyOptimizer(params, lr=...)`."""
    kwargs: dict[str, Any] = Field(default={})
    """Other arguments of the optimizer, by torch's names, as in `optim.kwargs.betas=[0.9,0.95]`.
    `name=sgd` has Nesterov momentum of 0.9 unless `momentum` or `nesterov` is among them."""
    lr: Positive = 0.03
    """Peak learning rate for the configured batch size. It is never rescaled."""
    weight_decay: Float = Field(default=5e-05, ge=0)
    """Weight decay. Biases, normalization weights, position embeddings, class tokens, layer scales
    and what the model's `no_weight_decay()` lists do not decay."""
    groups: dict[str, dict[str, Any]] = Field(default={})
    """Other arguments for the parameters whose names match a pattern, as in
    `optim.groups={fc.*:{lr:0.1},layer1.*:{lr:0.001}}` (quoted in a shell). The first
    pattern that matches counts; `*` is for the parameters that no other matches. `lr: 0` freezes
    them; batch normalization still follows the statistics of the data."""
    schedule: str = "cosine"
    """Shape of the learning rate after a linear warm-up. `cosine`: falls to zero at the end.
    `step`: is multiplied by `schedule_kwargs.factor` (0.1) every `schedule_kwargs.every` (30)
    epochs. Or the dotted path to your own function `(epoch, epochs)`, which returns the share of
    `lr`; `epoch` is a fraction, 2.5 in the middle of the third epoch."""
    schedule_kwargs: dict[str, Any] = Field(default={})
    """Arguments of the schedule."""
    warmup_epochs: Float = Field(default=1.0, ge=0)
    """Epochs of linear warm-up, fewer than `trainer.epochs`."""
    clip_norm: Positive | None = None
    """Largest gradient norm. null: no clipping; with `task.name=regression`, whose errors have
    gradients of any size, 1."""
    accumulate: Count = 1
    """Number of pieces in which each rank computes its share of a batch, to save memory. Must
    divide each rank's share."""
    mixup_alpha: Float = Field(default=0.0, ge=0)
    """Parameter of MixUp's Beta distribution. 0: off."""
    cutmix_alpha: Float = Field(default=0.0, ge=0)
    """Parameter of CutMix's Beta distribution. 0: off. With both on, each batch uses one of them at
    random."""
    ema_decay: Share | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated and exported.
    It ramps up, n / (n + 9) after n steps, so that the average of a short run does not remember its
    start. null: off."""

    def __post_init__(self) -> None:
        check_name("optim.name", self.name, OPTIMIZERS)
        check_name("optim.schedule", self.schedule, SCHEDULES)
        if self.schedule_kwargs and self.schedule == "cosine":
            message = "optim.schedule=cosine has none; remove it"
            raise ConfigError("optim.schedule_kwargs", self.schedule_kwargs, message)
        if "weight_decay" in self.kwargs:
            message = "remove it, and set optim.weight_decay"
            raise ConfigError("optim.kwargs.weight_decay", self.kwargs["weight_decay"], message)
        for pattern, arguments in self.groups.items():
            known = {key: arguments[key] for key in vars(GroupConfig()) if key in arguments}
            check_config(known, GroupConfig, f"optim.groups.{pattern}")


@dataclass(config=SETTINGS)
class TrainerConfig:
    """The training loop: length, devices, logging and checkpoints."""

    epochs: Count = 5
    """Passes over the train split."""
    batch_size: Count = 32
    """Images per optimizer step, over all ranks. Must be a multiple of the number of ranks."""
    seed: Int = Field(default=0, ge=0, le=2**31 - 1)
    """Random seed of initial weights, sample order, crops, dropout and MixUp."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: CUDA if there is a CUDA device, otherwise the CPU. A GPU that does not work is an
    error, unless this is `cpu`."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """`auto`: bf16 on CUDA devices that support it, otherwise fp32. `fp32`: without TF32. `tf32`:
    fp32, but GPUs round the inputs of convolutions and matrix products to TF32. `fp16`: with scaled
    gradients, for GPUs without bf16; a step whose gradients overflow changes no weights."""
    compile: Literal["default", "reduce-overhead", "max-autotune"] | None = None
    """Run the model through `torch.compile` in this mode, once for each image size. null: off."""
    deterministic: Bool = False
    """Use deterministic kernels only. On a CPU, a resumed run then ends bit-identical."""
    nproc_per_host: Count | None = None
    """Ranks on each host. null: one per GPU that CUDA may use, or one."""
    find_unused_parameters: Bool = False
    """Train on several ranks although steps leave parameters without gradients, as layers that are
    skipped at random do. Takes a little longer; otherwise such a parameter is an error."""
    log_every_steps: Count = 10
    """Steps between log lines."""
    evaluate_every_epochs: Count = 1
    """Epochs between evaluations. The last epoch is always evaluated."""
    early_stopping: Count | None = None
    """Number of evaluations in a row without a better value of the metric that `task.best` names,
    after which training ends. null: train all `epochs`."""
    checkpoint_every_steps: Count | None = None
    """Steps between checkpoints, besides those every 10 minutes, after each epoch and when the job
    is stopped. null: only those."""
    export: Literal["last", "best"] = "last"
    """Weights that `model/` holds and the report describes: those of the last evaluation, or of the
    best one (see `task.best`)."""
    report: Bool = True
    """Write output/data/report.html and summary.png at the end."""
    diagnose: Literal["profile", "one_batch"] | None = None
    """`profile`: trace ten steps of the first epoch into output/data/profile/, beside a table of
    the operators' times. `one_batch`: train on the first batch only, from memory; if the loss does
    not fall, there is a bug, and if images/s rise, input limits training."""

    @property
    def evaluated_epochs(self) -> list[int]:
        """Epochs that an evaluation follows."""
        every = self.evaluate_every_epochs
        return sorted({*range(every - 1, self.epochs, every), self.epochs - 1})


def check_ranks(trainer: TrainerConfig, ranks: int, accumulate: int) -> None:
    """Raise ConfigError unless `ranks` ranks can share a batch equally, each in equal pieces."""
    pieces = ranks * accumulate
    if trainer.batch_size % pieces:
        message = f"must be a multiple of {pieces}, ranks={ranks} x optim.accumulate={accumulate}"
        raise ConfigError("trainer.batch_size", trainer.batch_size, message)


NAMES_OF_DATASETS = {"data", "data.root", "data.format", "experiment"}
"""The overrides that name a dataset."""


@dataclass(config=SETTINGS)
class TrainConfig:
    """A training run."""

    data: DataConfig = Field(default_factory=DataConfig)
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    task: TaskConfig = Field(default_factory=TaskConfig)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    loggers: Words = Field(default=["tensorboard"])
    """Where else to log every number, besides the log and metrics.jsonl: `tensorboard`, `mlflow`,
    `wandb`, or the dotted path to your own class."""
    logger_kwargs: dict[str, dict[str, Any]] = Field(default={})
    """Arguments of a logger, by the last part of its name, as in `logger_kwargs.mlflow.uri=URL`."""

    def __post_init__(self) -> None:
        for name in self.loggers:
            check_name("loggers", name, LOGGERS)
        words = [name.rpartition(".")[2] for name in self.loggers]
        for word, kwargs in self.logger_kwargs.items():
            if word not in words:
                message = f"loggers={shown(self.loggers)} has no {word}{did_you_mean(word, words)}"
                raise ConfigError(f"logger_kwargs.{word}", kwargs, message)
        if (task := TASKS.get(self.task.name)) is not None:
            # The default task reads any labels, as nobody has chosen it.
            if self.data.table.kind is None and (task.takes == "labels" or task.takes == "numbers"):
                self.data.table.kind = task.takes
            if self.optim.clip_norm is None:
                self.optim.clip_norm = task.clip_norm
        if self.pipeline.engine == "dali" and self.augment.on_samples:
            key = "augment.erase" if self.augment.erase else "augment.name"
            value = self.augment.erase or self.augment.name
            message = "augments samples, which pipeline=dali cannot; use pipeline=threads"
            raise ConfigError(key, value, message)
        for name in ("mixup", "cutmix"):
            if self.data.views > 1 and (alpha := getattr(self.optim, f"{name}_alpha")):
                message = (
                    f"blends neighbors, but data.views={self.data.views} puts views of one image"
                )
                raise ConfigError(f"optim.{name}_alpha", alpha, f"{message} side by side; set 0")
        check_ranks(self.trainer, self.trainer.nproc_per_host or 1, self.optim.accumulate)

    def doubts(self) -> list[str]:
        """Returns a line for what is allowed and cannot be right: the run says it and trains."""
        lines, warmup, epochs = [], self.optim.warmup_epochs, self.trainer.epochs
        if warmup >= epochs:
            lines.append(
                f"optim.warmup_epochs={warmup:g}: the learning rate rises until the run ends with "
                f"trainer.epochs={epochs}; set optim.warmup_epochs={epochs / 10:g} or less, or "
                "more epochs"
            )
        every = self.optim.schedule_kwargs.get("every", 30)
        if self.optim.schedule == "step" and isinstance(every, int | float) and every >= epochs:
            advised = f"optim.schedule_kwargs.every={round(epochs / 3, 1):g}"
            lines.append(
                f"optim.schedule=step: the learning rate falls every {every:g} epochs, so never "
                f"with trainer.epochs={epochs}; set {advised} or less, or more epochs"
            )
        if late := [start for start, _ in self.data.progressive if start >= epochs]:
            lines.append(
                f"data.progressive={shown(self.data.progressive)}: the run ends with "
                f"trainer.epochs={epochs}, before epoch {late[0]}; begin its sizes earlier, or set "
                "more epochs"
            )
        if "adam" in self.optim.name.lower() and self.optim.lr == OptimConfig.lr:
            lines.append(
                f"optim.lr={self.optim.lr:g}: is the default, for sgd, and too high for most "
                f"models with optim.name={self.optim.name}; set optim.lr=0.001, or optim=adamw"
            )
        lines += self.task.ignored()
        weights = self.task.class_weights
        if self.data.balance and weights:
            lines.append(
                f"task.class_weights={shown(weights)}: data.balance={self.data.balance} draws rare "
                "classes more often already, so that they count twice; set one of them to null"
            )
        return lines


def load_train_config(
    overrides: Sequence[str], *, has_channels: bool = False, context: str = TYPED_HERE
) -> tuple[TrainConfig, str]:
    """Return the training job's configuration, and the same as YAML to keep with the model.

    The demo is composed only where nothing names a dataset, neither an override nor a channel.
    Without `context`, a path may be a URI: a launcher says which channel a job needs instead.
    """
    keys = {override.partition("=")[0].lstrip("+~") for override in overrides}
    demo = [] if has_channels or keys & NAMES_OF_DATASETS else ["data=demo"]
    config = load_config("train", TrainConfig, [*demo, *overrides], context)
    return config, resolved_yaml(config)
