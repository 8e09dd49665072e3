"""The learner: one step's loss, gradients and randomness; the optimizer and its schedule."""

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import OptimConfig, TrainConfig, load_train_config
from entry_point.data.sources.source import Source
from entry_point.job.devices import Devices
from entry_point.training.augmentation import seed_step
from entry_point.training.learner import Learner
from entry_point.training.optim import build_optimizer, rate_factor
from entry_point.training.tasks.classification import Classification
from tests.entry_point.training.tasks.label_sources import classes, task_of
from tests.own_models import tiny_net

CPU = Devices(torch.device("cpu"), None)
V2 = "torchvision.transforms.v2"


def learner(*overrides: str) -> Learner:
    config, _ = load_train_config(["model.name=tests.own_models.tiny_net", *overrides])
    return Learner(
        config, CPU, task_of(classes(4), *overrides), steps_per_epoch=10, channels=Path()
    )


def batch(count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    return images, torch.randint(0, 4, (count,), generator=generator)


def drawing_net(num_classes: int) -> nn.Module:
    """A model that draws from all generators that a model may use."""

    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_net(num_classes)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            drawn = random.random() + np.random.random() + float(torch.rand(()))
            logits: torch.Tensor = self.net(images) * drawn
            return logits

    return Drawing()


class Scaled:
    """An augmentation with an argument."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images * self.factor


def as_bytes(most: int = 255) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda images: (images * most).to(torch.uint8)


def cut(_size: int = 1) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda images: images[:, :, 1:]


def test_an_augmentation_of_your_own_changes_what_the_model_gets() -> None:
    images, labels = batch()
    plain, scaled = learner(), learner(f"augment.name={__name__}.Scaled", "augment.kwargs.factor=3")
    losses = [plain.loss(3 * images, labels, 0), scaled.loss(images, labels, 0)]
    assert float(losses[0]) == pytest.approx(float(losses[1]))


def test_torchvisions_transforms_are_augmentations() -> None:
    erasing = f"augment.name={V2}.RandomErasing"
    losses = [float(learner(erasing, f"augment.kwargs.p={p}").loss(*batch(), 0)) for p in (0, 1)]
    assert losses[0] == float(learner().loss(*batch(), 0)) != losses[1]


def jittered() -> v2.Transform:
    return v2.Compose([v2.GaussianBlur(3), v2.RandomApply([v2.ColorJitter(0.4)])])


def jittered_then_normalized() -> v2.Transform:
    jitter = v2.RandomApply([v2.ColorJitter(0.4)])
    return v2.Compose([jitter, v2.Normalize([0.5] * 3, [0.2] * 3)])


def jittered_as_pixels() -> v2.Transform:
    return v2.Compose([v2.Normalize([-1.0] * 3, [2.0] * 3), v2.ColorJitter(0.4)])


def flipped_and_normalized() -> v2.Transform:
    return v2.Compose([v2.RandomHorizontalFlip(), v2.Normalize([0.5] * 3, [0.2] * 3)])


def jittered_and_normalized() -> v2.Transform:
    back = v2.Normalize([0.0] * 3, [0.5] * 3)
    return v2.Compose([v2.Normalize([-1.0] * 3, [2.0] * 3), v2.ColorJitter(0.4), back])


def test_a_pipeline_that_would_normalize_training_images_alone_is_refused() -> None:
    """As one that is copied from a program whose loader does not normalize: validation images have
    no augmentation."""
    as_pixels = ["data.mean=[0,0,0]", "data.std=[1,1,1]"]
    for name, more in (
        ("flipped_and", []),
        ("flipped_and", as_pixels),
        ("jittered_then", as_pixels),
    ):
        with pytest.raises(ConfigError, match=r": Normalize changes training .* data\.mean and da"):
            learner(f"augment.name={__name__}.{name}_normalized", *more)
    learner(f"augment.name={__name__}.jittered_and_normalized")


@pytest.mark.parametrize("name", [f"{V2}.ColorJitter", f"{V2}.AugMix", f"{__name__}.jittered"])
def test_a_transform_that_takes_pixels_gets_no_normalized_batch(name: str) -> None:
    """torchvision's would cut off all below the mean."""
    error = r"^augment\.per=batch: (ColorJitter|AugMix) takes pixels from 0 to 1, and .* set sample"
    with pytest.raises(ConfigError, match=error):
        learner(f"augment.name={name}")
    learner(f"augment.name={name}", "data.mean=[0,0,0]", "data.std=[1,1,1]")
    learner(f"augment.name={name}", "augment.per=sample")
    learner(f"augment.name={__name__}.jittered_as_pixels")
    with pytest.raises(ConfigError, match=error):
        learner(f"augment.name={__name__}.jittered_then_normalized")


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("name=os.getcwd", "must return a function from images to images, not str"),
        (f"name={__name__}.cut", "must return images of the shape (8, 3, 16, 16), not torch.Size"),
        (f"name={__name__}.as_bytes", "must return normalized images of floats, not torch.uint8"),
    ],
)
def test_a_wrong_augmentation_is_one_line(override: str, error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        learner(f"augment.{override}").loss(*batch(), 0)


def doubled() -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda images: 2 * images.double()


def test_a_batch_that_numpy_has_made_float64_of_is_learned_as_floats() -> None:
    images, labels = batch()
    loss = learner(f"augment.name={__name__}.doubled").loss(images, labels, 0)
    assert float(loss) == pytest.approx(float(learner().loss(2 * images, labels, 0)))


class Centered(Classification):
    """Would learn a scale of the outputs."""

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        super().__init__(train, config, device)
        self.scale = nn.Parameter(torch.ones(()))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(self.scale * outputs, targets)


class Forgetful(nn.Module):
    """Would learn what is no parameter of it."""

    def __init__(self, num_classes: int, holds: str) -> None:
        super().__init__()
        self.net, self.first = tiny_net(num_classes), {"first": nn.Identity()}
        scale = torch.ones(num_classes, requires_grad=True)
        if holds == "scale":
            self.scale = scale
        elif holds == "buffer":
            self.register_buffer("scale", scale)
        else:
            self.scale = torch.ones(())
            self.first["first"] = nn.utils.skip_init(nn.Conv2d, 3, 3, 1)
            for weight in self.first["first"].parameters():
                nn.init.ones_(weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(self.first["first"](images)) * self.scale
        return logits


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("task.name=classification", None),
        (f"task.name={__name__}.Centered", "Centered.scale"),
        (f"model.name={__name__}.Forgetful model.kwargs.holds=scale", "Forgetful.scale"),
        (f"model.name={__name__}.Forgetful model.kwargs.holds=buffer", "Forgetful._buffers"),
        (f"model.name={__name__}.Forgetful model.kwargs.holds=layers", "Forgetful.first"),
    ],
)
def test_what_a_loss_would_change_and_nothing_trains_is_named_once(
    override: str, named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    some = learner(*override.split())
    for step in range(2):
        some.loss(*batch(), step)
        some.update()
        some.record()
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == (named is not None), found
    assert named is None or found[0].startswith(f"the loss has gradients for {named}, which no opt")


def gradients(some: Learner) -> list[torch.Tensor]:
    return [p.grad.clone() for p in some.model.parameters() if p.grad is not None]


def test_losses_of_a_fixed_batch_are_those_that_were_recorded() -> None:
    some = learner("optim.warmup_epochs=0")
    losses = []
    for step in range(6):
        losses.append(float(some.loss(*batch(), step)))
        some.update()
    recorded = [1.36254, 1.35493, 1.34432, 1.3314, 1.31681, 1.30095]
    assert losses == pytest.approx(recorded, abs=1e-4)


def test_accumulated_gradients_equal_those_of_the_whole_batch() -> None:
    whole, cut = learner(), learner("optim.accumulate=4")
    assert whole.loss(*batch(), 0) == pytest.approx(float(cut.loss(*batch(), 0)), abs=1e-6)
    for expected, got in zip(gradients(whole), gradients(cut), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("limit", [None, 0.01])
def test_gradients_are_clipped_to_clip_norm_and_their_norm_before_is_logged(
    limit: float | None,
) -> None:
    some = learner(f"optim.clip_norm={'null' if limit is None else limit}")
    some.loss(*batch(), 0)
    before = torch.cat([gradient.flatten() for gradient in gradients(some)]).norm()
    some.update()
    after = torch.cat([gradient.flatten() for gradient in gradients(some)]).norm()
    assert float(after) == pytest.approx(limit or float(before), rel=1e-3)
    assert some.record()["grad_norm"] == pytest.approx(float(before), rel=1e-5)


def test_averaged_weights_are_evaluated() -> None:
    averaged, raw = learner("optim.ema_decay=0.5"), learner()
    trained(averaged, range(3))
    assert averaged.ema is not None and averaged.exported is averaged.ema.model
    assert not torch.equal(averaged.exported[6].bias, averaged.model[6].bias)  # type: ignore[index]
    assert raw.exported is raw.model


@pytest.mark.parametrize(
    "drawing",
    [
        *("optim.mixup_alpha=0.4", "optim.cutmix_alpha=1"),
        *("augment.name=project.augmentations.Noise", f"model.name={__name__}.drawing_net"),
    ],
)
def test_what_a_step_draws_depends_only_on_its_number(drawing: str) -> None:
    first, second = learner(drawing), learner(drawing)
    first.loss(*batch(), 0)
    assert float(first.loss(*batch(), 5)) == float(second.loss(*batch(), 5))
    assert float(first.loss(*batch(), 6)) != float(second.loss(*batch(), 5))


def drawn_after(seed: int, step: int, rank: int) -> tuple[float, ...]:
    """What each generator draws first in a step."""
    seed_step(Devices(CPU.device, None, rank, world_size=rank + 1), seed, step)
    return random.random(), float(np.random.random()), float(torch.rand((), dtype=torch.float64))


def test_every_seed_step_and_rank_draws_other_numbers_from_each_generator() -> None:
    cases = [
        *((seed, 0, 0) for seed in (0, 1, 7, 2**31 - 1)),
        *((0, step, 0) for step in (1, 2, 2**20, 2**20 + 1)),
        *((0, 0, rank) for rank in (1, 4095)),
    ]
    drawn = [drawn_after(*case) for case in cases]
    assert [len(set(of_one)) for of_one in zip(*drawn, strict=True)] == [len(cases)] * 3
    assert drawn == [drawn_after(*case) for case in cases]


def test_bf16_computes_in_bf16_and_keeps_the_weights_in_fp32() -> None:
    half = of_precision(torch.bfloat16)
    exact, rounded = (float(some.loss(*batch(), 0)) for some in (learner(), half))
    assert rounded == pytest.approx(exact, rel=1e-2)
    assert rounded != exact
    assert all(gradient.dtype is torch.float32 for gradient in gradients(half))


def of_precision(dtype: torch.dtype) -> Learner:
    config, _ = load_train_config(["model.name=tests.own_models.tiny_net"])
    return Learner(config, Devices(CPU.device, dtype), task_of(classes(4)), 10, Path())


def fp16_learner() -> Learner:
    return of_precision(torch.float16)


def trained(some: Learner, steps: range) -> dict[str, torch.Tensor]:
    for step in steps:
        some.loss(*batch(), step)
        some.update()
    return some.model.state_dict()


def test_fp16_trains_as_fp32_but_for_rounding() -> None:
    rounded, exact = (trained(some, range(5)) for some in (fp16_learner(), learner()))
    for name, value in exact.items():
        torch.testing.assert_close(rounded[name], value, rtol=0.05, atol=0.01)


def test_fp16_resumes_bit_identical_with_the_scale_of_its_gradients() -> None:
    whole, first, second = fp16_learner(), fp16_learner(), fp16_learner()
    # So large that gradients overflow at first.
    for some in (whole, first):
        some.load_state({**some.state(), "scaler": {**some.state()["scaler"], "scale": 2.0**30}})
    trained(first, range(8))
    second.load_state(first.state())
    expected, resumed = trained(whole, range(16)), trained(second, range(8, 16))
    assert all(torch.equal(resumed[name], value) for name, value in expected.items())
    assert 0 < second.state()["scaler"]["scale"] < 2**30


def test_another_precision_continues_and_fp16_begins_with_a_fresh_scale() -> None:
    exact, half, again = learner(), fp16_learner(), learner()
    trained(exact, range(4))
    half.load_state(exact.state())
    assert half.state()["scaler"] == fp16_learner().state()["scaler"]
    trained(half, range(4, 8))
    again.load_state(half.state())
    trained(again, range(8, 10))
    assert all(value.isfinite().all() for value in again.model.state_dict().values())


@pytest.mark.parametrize(
    ("schedule", "steps"), [("cosine", 10), ("tests.own_optimizers.falling", 4)]
)
def test_more_epochs_continue_at_the_rates_of_their_own_schedule(schedule: str, steps: int) -> None:
    """Also the first step, whose rate the shorter schedule has already left in the optimizer."""
    given = ["optim.groups={6.*:{lr:0.1}}", f"optim.schedule={schedule}", "optim.warmup_epochs=0"]
    short = learner("trainer.epochs=1", *given)
    long, expected = (learner("trainer.epochs=3", *given) for _ in range(2))
    trained(short, range(steps))
    trained(expected, range(steps))
    long.load_state(short.state())
    for some in (long, expected):
        some.loss(*batch(), steps)
    rates = [[group["lr"] for group in some.optimizer.param_groups] for some in (long, expected)]
    assert rates[0] == rates[1]
    assert len({*rates[0]}) == 2


def test_gradient_checkpointing_trains_the_same_weights() -> None:
    vit = ("model.name=timm/test_vit", "data.image_size=16", "data.resize=16")
    plain, saving = learner(*vit), learner(*vit, "model.gradient_checkpointing=true")
    assert (plain.model.grad_checkpointing, saving.model.grad_checkpointing) == (False, True)
    one, other = trained(plain, range(2)), trained(saving, range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_gradient_checkpointing_is_refused_for_a_model_that_cannot() -> None:
    with pytest.raises(ConfigError) as caught:
        learner("model.gradient_checkpointing=true")
    assert str(caught.value) == (
        "model.gradient_checkpointing=true: model.name=tests.own_models.tiny_net has no "
        "set_grad_checkpointing(), as timm's have; set it to false"
    )


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize(("device", "fused"), [("cuda", True), ("cpu", None)])
def test_the_optimizer_is_one_kernel_on_a_gpu(name: str, device: str, fused: bool | None) -> None:
    optimizer = build_optimizer(OptimConfig(name=name), tiny_net(4), torch.device(device))
    assert optimizer.defaults["fused"] is fused


def test_the_learning_rate_warms_up_then_follows_a_cosine_to_nearly_zero() -> None:
    factor = rate_factor(OptimConfig(warmup_epochs=1), steps_per_epoch=10, epochs=5)
    assert [factor(step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert factor(30) == pytest.approx(0.5)
    assert factor(49) == pytest.approx(0.5 * (1 + math.cos(math.pi * 39 / 40)))


def test_the_learning_rate_falls_in_steps() -> None:
    config = OptimConfig(schedule="step", schedule_kwargs={"every": 2}, warmup_epochs=0)
    factor = rate_factor(config, steps_per_epoch=10, epochs=6)
    assert [factor(step) for step in (0, 19, 20, 40)] == pytest.approx([1, 1, 0.1, 0.01])


def test_the_longest_warmup_and_step_a_float_can_hold_give_a_learning_rate() -> None:
    config = OptimConfig(schedule="step", warmup_epochs=1e308, schedule_kwargs={"every": 1e308})
    assert rate_factor(config, steps_per_epoch=10, epochs=6)(29) == pytest.approx(0.5)
    late = OptimConfig(schedule="step", warmup_epochs=0, schedule_kwargs={"every": 1e308})
    assert [rate_factor(late, 10, 6)(step) for step in (0, 59, 60)] == [1, 1, 1]
