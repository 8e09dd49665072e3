"""The job's configuration: typed, composed by Hydra from `configs/`, checked once at the door.

`load_config` is the only way in: it raises `ConfigError` with one readable message for
whatever is wrong (an unknown key, a wrong type, a value out of range, a group option that
does not exist). Behind it everything is a plain dataclass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from entry_point.config.compose import load_config, resolved_yaml
from entry_point.config.config_errors import ConfigError, check_choice, check_range
from entry_point.config.data_config import DataConfig, PipelineConfig


@dataclass
class ModelConfig:
    name: str = "resnet18"
    """Any classification model of torchvision by its function's name, or your own: the dotted
    path of a callable that takes num_classes."""
    weights: str | None = None
    """State dict to start from: a file, or a channel's name that holds exactly one .pt or
    .pth file. A head of another size is left as initialised. Nothing is downloaded."""
    sync_batchnorm: bool = False
    """Batch statistics over all ranks instead of each rank's own."""

    def __post_init__(self) -> None:
        if not all(part.isidentifier() for part in self.name.split(".")):
            raise ConfigError(
                f"model.name={self.name!r}: must be a torchvision model's name or package.function"
            )


@dataclass
class OptimConfig:
    name: str = "sgd"
    """sgd or adamw."""
    lr: float = 0.1
    """Peak learning rate for the batch size as configured; never scaled behind one's back."""
    momentum: float = 0.9
    nesterov: bool = True
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 5e-5
    """Not applied to biases and normalisation weights."""
    schedule: str = "cosine"
    """cosine or step, both after a linear warm-up."""
    warmup_epochs: float = 0.0
    step_epochs: float = 30.0
    """schedule=step: multiply the rate by step_factor after each so many epochs."""
    step_factor: float = 0.1
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    """Largest gradient norm; null clips nothing."""
    accumulate: int = 1
    """Pieces in which each rank computes its share of a batch, to fit its memory."""
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    """Beta distributions' parameter; 0 is off. Both on: each batch draws one of them."""
    ema_decay: float | None = None
    """Also keep an exponential moving average of the weights, evaluate and export it."""

    def __post_init__(self) -> None:
        check_choice("optim.name", self.name, ("sgd", "adamw"))
        check_choice("optim.schedule", self.schedule, ("cosine", "step"))
        check_range("optim.lr", self.lr, above=0.0)
        check_range("optim.momentum", self.momentum, 0.0, 1.0)
        check_range("optim.weight_decay", self.weight_decay, 0.0)
        check_range("optim.warmup_epochs", self.warmup_epochs, 0.0)
        check_range("optim.step_epochs", self.step_epochs, above=0.0)
        check_range("optim.step_factor", self.step_factor, 0.0, 1.0)
        check_range("optim.label_smoothing", self.label_smoothing, 0.0, 1.0)
        check_range("optim.accumulate", self.accumulate, 1)
        check_range("optim.mixup_alpha", self.mixup_alpha, 0.0)
        check_range("optim.cutmix_alpha", self.cutmix_alpha, 0.0)
        if self.clip_norm is not None:
            check_range("optim.clip_norm", self.clip_norm, above=0.0)
        if self.ema_decay is not None:
            check_range("optim.ema_decay", self.ema_decay, 0.0, 1.0)
        if len(self.betas) != 2:
            raise ConfigError(f"optim.betas={self.betas}: must be two numbers, as in [0.9,0.999]")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optim.betas={self.betas}: must be at least 0 and below 1")
        if self.nesterov and not self.momentum and self.name == "sgd":
            raise ConfigError("optim.nesterov=true: needs optim.momentum above 0")


@dataclass
class TrainerConfig:
    epochs: int = 10
    batch_size: int = 64
    """Images per optimizer step, over all ranks."""
    seed: int = 0
    device: str = "auto"
    """auto (a CUDA device where there is one), cpu or cuda."""
    precision: str = "auto"
    """auto (bf16 on CUDA devices that have it, else fp32), fp32 or bf16."""
    channels_last: bool = True
    compile: bool = False
    """Run the model through torch.compile."""
    deterministic: bool = False
    """Only deterministic kernels; a resumed run ends bit-identical on a CPU."""
    nproc_per_host: int | None = None
    """Ranks on each host; null means one per visible GPU, or one."""
    log_every_steps: int = 10
    evaluate_every_epochs: int = 1
    checkpoint_every_steps: int | None = None
    checkpoint_every_minutes: float | None = 10.0
    """A checkpoint is also written after each evaluation and when the job is stopped."""
    keep_checkpoints: int = 2
    """Newest checkpoints to keep, beside the best one."""
    resume: bool = True
    """Go on from the newest good checkpoint of the run folder."""
    report: bool = True
    """Write output/data/report.html and the exported program at the end."""
    headspace: bool = False
    """After the first epoch, repeat its steps on batches kept in memory, and say how much faster
    training would be if input were free. The training is not changed by it."""
    profile: bool = False
    """Trace ten steps of the first epoch: output/data/profile/, with a table in the log."""
    overfit_one_batch: bool = False
    """Train on the first batch again and again: a loss that does not fall is a bug."""

    def __post_init__(self) -> None:
        check_choice("trainer.device", self.device, ("auto", "cpu", "cuda"))
        check_choice("trainer.precision", self.precision, ("auto", "fp32", "bf16"))
        for name in (
            "epochs",
            "batch_size",
            "log_every_steps",
            "evaluate_every_epochs",
            "keep_checkpoints",
        ):
            check_range(f"trainer.{name}", getattr(self, name), 1)
        if self.headspace and self.profile:
            raise ConfigError(
                "trainer.profile=true: slows the steps that trainer.headspace=true measures; "
                "use one at a time"
            )
        check_range("trainer.seed", self.seed, 0, 2**31 - 1)
        for name in ("nproc_per_host", "checkpoint_every_steps"):
            if (value := getattr(self, name)) is not None:
                check_range(f"trainer.{name}", value, 1)
        if self.checkpoint_every_minutes is not None:
            check_range(
                "trainer.checkpoint_every_minutes", self.checkpoint_every_minutes, above=0.0
            )


def check_ranks(trainer: TrainerConfig, ranks: int) -> None:
    """Raise ConfigError unless so many ranks can share a batch."""
    if trainer.batch_size % ranks:
        raise ConfigError(
            f"trainer.batch_size={trainer.batch_size}: must be a multiple of the {ranks} ranks "
            "that share it"
        )


@dataclass
class TrainConfig:
    """All of `configs/train.yaml`."""

    data: DataConfig = field(default_factory=DataConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        if self.trainer.batch_size % self.optim.accumulate:
            raise ConfigError(
                f"optim.accumulate={self.optim.accumulate}: must divide "
                f"trainer.batch_size={self.trainer.batch_size}"
            )


def load_train_config(overrides: Sequence[str]) -> tuple[TrainConfig, str]:
    """The training job's configuration, and the same as the YAML text to keep with the model."""
    config = load_config("train", TrainConfig, overrides)
    return config, resolved_yaml(config)
