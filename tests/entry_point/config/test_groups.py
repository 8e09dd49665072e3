"""What the settings of a group must agree on, and their bounds: one line that names the key.

tests/recorded/mistakes.json has the everyday ones, with what whoever follows the line types.
"""

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.policy_config import RandTimm
from entry_point.config.train_config import load_train_config

OWN = "augment.name=project.augmentations.Noise"
WRONG = [
    (["data.scale=[0.9,1.5]"], "data.scale[1]=1.5: Input should be less than or equal to 1"),
    (["data.scale=[0,1]"], "data.scale[0]=0: Input should be greater than 0"),
    (["data.ratio=[2,1]"], "data.ratio=[2.0,1.0]: must be [smallest,largest]"),
    (["data.mean=[0,116,0]"], "data.mean[1]=116: Input should be less than or equal to 1"),
    (["data.std=[0.1,0,0.1]"], "data.std[1]=0: Input should be greater than 0"),
    (["data=demo", "data.kwargs.train_images=3"], "data.kwargs.train_images=3: Input should be"),
    (["data.kwargs.x=3"], "data.kwargs={x:3}: needs data=demo or a source of your own"),
    (
        ["data=shards", "data.table.split=x"],
        "data.table.split=x: needs data=manifest, masks or a source",
    ),
    (["data=webdataset", "data.table.labels=x"], "data.table.labels=[x]: needs data=manifest"),
    (["data.format=a.b", "data.val_fraction=0.1"], "data.val_fraction=0.1: needs data=folder, "),
    (["data.views=0"], "data.views=0: Input should be greater than or equal to 1"),
    (["data.views=2", "optim.cutmix_alpha=1"], "optim.cutmix_alpha=1.0: blends neighbors, but "),
    (
        ["augment.name=rand_timm", "augment.kwargs.n=two"],
        "augment.kwargs.n=two: Input should be a valid integer",
    ),
    (
        ["augment.name=color_jitter", "augment.kwargs.contrast=1e38"],
        "augment.kwargs.contrast=1e+38: Input should be less than or equal to 100",
    ),
    (
        ["augment.name=erase", "augment.kwargs.scale=[0.5,0.1]"],
        "augment.kwargs.scale=[0.5,0.1]: must be [smallest,largest]",
    ),
    (
        ["augment.name=trivial", "augment.per=sample"],
        "augment.per=sample: is for your own augmentation",
    ),
    (
        [OWN, "augment.per=sample", "pipeline=dali"],
        "augment.name=project.augmentations.Noise: augments samples, which pipeline=dali cannot",
    ),
    (["task=multilable"], "task=multilable: must be one of "),
    (["augment=trivial", "augment.erase=0.2"], "augment=trivial: is a group of settings: set augm"),
    (["task=null"], "task=null: must be one of classification, "),
    (["model=timm/a"], "model=timm/a: must be one of resnet18, resnet50, or set model.name=timm/a"),
    (
        ["data=/a/b"],
        "data=/a/b: must be one of auto, demo, folder, manifest, masks, parquet, shards, "
        "webdataset, or set data.root=/a/b",
    ),
    (["model.kwargs=[64]"], "model.kwargs=[64]: Input should be a valid dictionary"),
    (["task.name=a.1"], "task.name=a.1: must be one of classification"),
    (["task.kwargs.x=1"], "task.kwargs.x=1: no such key; task.kwargs of classification has gamma"),
    (["task.kwargs.gamma=-1"], "task.kwargs.gamma=-1: Input should be greater than or equal to 0"),
    (["task.loss=focl"], "task.loss=focl: must be one of cross_entropy, focal, "),
    (["task=regression", "task.loss=focal"], "task.loss=focal: must be one of squared_error, "),
    (["task.class_weights=many"], "task.class_weights=many: must be auto, null, or a list"),
    (["task.class_weights=[1,-1]"], "task.class_weights=[1,-1]: must be auto"),
    (["task.class_weights=[1,.nan]"], "task.class_weights=[1,"),
    (["task.class_weights=[0,0]"], "task.class_weights=[0,0]: must be auto"),
    (["task.label_smoothing=1"], "task.label_smoothing=1: Input should be less than 1"),
    (["task.class_weights=[true]"], "task.class_weights=[true]: must be auto"),
    (["task.metrics=[a-b]"], "task.metrics=a-b: must be letters, digits and underscores"),
    (["+trainer.lr=1"], "trainer.lr=1: no such key; did you mean optim.lr?"),
    (["modle=resnet18"], "modle=resnet18: no such key; did you mean model?"),
    (["+optim.lrr=1"], "optim.lrr=1: no such key; did you mean optim.lr?"),
    (["model.name='no name'"], "model.name='no name': must be a torchvision model's name"),
    (["optim.lr=0.1", "optim.lr=high"], "optim.lr=high: Input should be a valid number"),
    (["trainer.epochs=true"], "trainer.epochs=true: Input should be a valid integer"),
    (["trainer.epochs='3'"], "trainer.epochs=3: Input should be a valid integer"),
    (["trainer.seed=${x}"], "trainer.seed: Interpolation key 'x' not found"),
    ([f"task.metrics=[{','.join('abcdefghi')}]"], "task.metrics=[a,b,c,d,e,f,g,h,i]: at most 8"),
]


@pytest.mark.parametrize(("overrides", "line"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_what_is_wrong_is_one_line(overrides: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_train_config(["data.root=x", *overrides])
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_an_own_task_takes_any_metric_and_arguments_and_is_not_imported() -> None:
    settings = ["task.best=kappa", "task.metrics=[kappa]", "task.kwargs.depth=3"]
    config, _ = load_train_config(["task.name=no.such.Task", *settings])
    assert config.task.best == "kappa" and config.task.kwargs == {"depth": 3}


def test_settings_of_your_own_source_are_taken_as_they_are() -> None:
    given = ["data.kwargs.x=3", "data.table.split=part", "data.images=photos"]
    config, _ = load_train_config(["data.format=a.b", *given])
    assert config.data.kwargs == {"x": 3} and config.data.table.split == "part"


def test_settings_behind_a_word_that_a_later_override_replaces_count() -> None:
    config, _ = load_train_config(["augment=trivial", "augment={}", "augment.erase=0.1"])
    assert (config.augment.name, config.augment.erase) == (None, 0.1)


def test_a_policys_arguments_have_their_defaults_and_types() -> None:
    config, _ = load_train_config(["augment.name=rand_timm", "augment.kwargs.m=5"])
    assert config.augment.policy() == RandTimm("nearest", [0, 0, 0], n=2, m=5)


def test_the_log_says_what_is_augmented_and_what_costs_the_interpreter() -> None:
    config, _ = load_train_config(["augment.name=trivial", "augment.erase=0.1"])
    assert config.augment.describe() == "trivial; erase 0.1 of the samples"
    config, _ = load_train_config([OWN, "augment.per=sample"])
    assert config.augment.describe() == (
        "project.augmentations.Noise, on each sample: Python runs for each, which costs decoding "
        "speed"
    )
    assert load_train_config([])[0].augment.describe() == ""


def test_a_batch_augmentation_of_your_own_goes_with_dali() -> None:
    load_train_config([OWN, "pipeline=dali"])
