"""The model folder: `predict` and `serve` build what the trainer trained, and nothing else."""

import json
import os
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from entry_point import model_folder
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.sources.source import Source
from entry_point.job.known_tasks import LOSS
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder
from entry_point.model_folder import ModelError, doubts, load_model, read_code, read_config
from entry_point.training.export import Export
from entry_point.training.tasks.build_task import build_task
from entry_point.training.tasks.task import Task
from project.models import small_net
from project.tasks import OrderedClasses
from tests import commands, forkserver
from tests.entry_point.serving.served_model import CLASSES, LABELS, SMALL, write_model
from tests.entry_point.training.tasks.label_sources import CPU, labels, task_of

IMAGES = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
OWN_NET = """
from pathlib import Path
from entry_point.training.tasks.build_task import build_task
from entry_point.training.tasks.task import Task
from project.models import small_net

def net(num_classes):
    Path(__file__).with_name("imported").touch()
    return small_net(num_classes, width=8)
"""


def write_image(folder: Path) -> Path:
    """A folder with a folder `cat` with an image."""
    (folder / "images/cat").mkdir(parents=True)
    Image.effect_noise((40, 30), 60).convert("RGB").save(folder / "images/cat/a.png")
    return folder / "images"


def arguments(model: Path, images: Path, key: str = "input") -> list[str]:
    return [f"model_dir={model}", f"{key}={images}", f"output_dir={images.parent / 'output'}"]


def change(model: Path, **settings: object) -> None:
    """Write settings, as in `model__name="resnet18"`, to config.yaml."""
    file = model / "config.yaml"
    config = yaml.safe_load(file.read_text())
    for path, value in settings.items():
        group, _, name = path.partition("__")
        config[group][name] = value
    file.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("kind", "task"),
    [("class", "classification"), ("labels", "multilabel"), ("numbers", "regression")],
)
def test_a_folder_answers_as_the_network_that_was_saved(
    kind: str, task: str, tmp_path: Path
) -> None:
    network = small_net(len(CLASSES), width=8).eval()
    model = load_model(write_model(tmp_path, f"task={task}", kind=kind, network=network), CPU)
    assert (model.config.task.name, model.task.names) == (task, CLASSES)
    mean, std = (torch.tensor(values) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = (IMAGES / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.inference_mode():
        outputs = network(pixels)
    if kind == "class":
        expected = outputs.softmax(1)
    elif kind == "labels":
        expected = outputs.sigmoid()
    else:  # in the units of the data
        expected = outputs * LABELS[kind].std(0, correction=0) + LABELS[kind].mean(0)
    torch.testing.assert_close(model.predict(IMAGES), expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_version_1_0_saved_loads(tmp_path: Path) -> None:
    """Its settings that are retired do not count."""
    folder = write_model(tmp_path)
    change(folder, trainer__onnx=False, augment__name="rand")
    with (folder / "config.yaml").open("a") as file:
        file.write("base_image: sha256:abc\nunfinished: {epoch: 1, step: 5}\n")
    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights, {"validation": "accuracy 84.67 %"})
    model = load_model(folder, CPU)
    assert (model.task.names, model.reached) == (CLASSES, "validation accuracy 84.67 %")


def test_a_folder_says_what_it_has_reached_and_every_user_may_read_it(tmp_path: Path) -> None:
    """An image that serves as another user than the one who trained needs the weights."""
    folder = write_model(tmp_path)
    modes = {path.name: oct(path.stat().st_mode) for path in folder.iterdir()}
    assert modes["model.safetensors"] == modes["config.yaml"] == modes["classes.json"]
    assert load_model(folder, CPU).reached is None
    reached = "epoch 3 of 90, validation accuracy 84.67 %"
    folder = write_model(tmp_path / "other", reached=reached)
    assert load_model(folder, CPU).reached == reached


def test_own_code_comes_from_the_folder(tmp_path: Path) -> None:
    """Also where another project is at hand, as in the image or on the next branch."""
    network = small_net(len(CLASSES), width=8)
    settings = "model.name=project.net.net"
    model = write_model(tmp_path / "run", settings, network=network, code=OWN_NET)
    command = ["-m", "entry_point", "predict", *arguments(model, write_image(tmp_path))]
    log = tmp_path / "log"
    predict = forkserver.start(command, log, prepare=forkserver.forget)
    output, _ = predict.communicate(60)
    assert predict.returncode == 0, output
    assert (model / "code/project/imported").is_file()
    assert not list(model.rglob("__pycache__"))


def test_a_process_that_trains_keeps_its_own_code_when_it_loads_a_teacher(tmp_path: Path) -> None:
    """The teacher's folder has an older `project`, or another one."""
    before, path = sys.modules["project.models"], [*sys.path]
    network = small_net(len(CLASSES), width=8)
    settings = "model.name=project.net.net"
    model = write_model(tmp_path, settings, network=network, code=OWN_NET)
    teacher = load_model(model, CPU)
    assert teacher.predict(IMAGES).shape == (3, len(CLASSES))
    assert sys.modules["project.models"] is before and sys.path == path
    assert "project.net" not in sys.modules and find_spec("project.net") is None


def test_a_model_has_the_code_that_its_job_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People edit their code for the next run while this one trains."""
    net = tmp_path / "project/net.py"
    net.parent.mkdir()
    net.write_text("the code that trains")
    found = SimpleNamespace(submodule_search_locations=[str(net.parent)])
    monkeypatch.setattr(model_folder, "find_spec", lambda _: found)
    config, _ = load_train_config([*SMALL, "model.name=project.net.net"])
    run, task = RunFolder(tmp_path / "run"), task_of(labels("class", CLASSES, LABELS["class"]))
    export = Export(run, config, task, CLASSES, LOSS, read_code(config))
    net.write_text("that of the next run")
    export.write({"progress": {"epoch": 1}, "learner": {"model": {}}})
    assert (run.model / "code/project/net.py").read_text() == "the code that trains"


def test_a_linked_folder_of_own_code_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, shared = tmp_path / "project", tmp_path / "shared"
    for file in (package / "net.py", shared / "blocks.py", shared / "__pycache__/blocks.pyc"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (package / "lib").symlink_to(shared)
    found = SimpleNamespace(submodule_search_locations=[str(package)])
    monkeypatch.setattr(model_folder, "find_spec", lambda _: found)
    network = small_net(len(CLASSES), width=8)
    model = write_model(tmp_path, "model.name=project.net.net", network=network)
    copied = [file for file in (model / "code/project").rglob("*") if file.is_file()]
    assert sorted(file.name for file in copied) == ["blocks.py", "net.py"]


def test_code_that_the_folder_cannot_hold_is_said(tmp_path: Path) -> None:
    model = write_model(tmp_path, name := "model.name=tests.own_models.tiny_net")
    [line] = doubts(read_config(model), CLASSES)
    assert f"refuse {name}: move it to" in line
    with pytest.raises(ModelError, match="import it in project/"):
        load_model(model, CPU)


def test_a_task_that_needs_the_images_is_named_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not once it has trained for a day: `predict` and `serve` have no train split."""

    monkeypatch.setattr(OrderedClasses, "__init__", lambda _, train, **__: train.key(0))
    config, _ = load_train_config([*SMALL, "task.name=project.tasks.OrderedClasses"])
    [line] = doubts(config, CLASSES)
    assert line.startswith("predict and serve cannot build task.name=project.tasks.OrderedClasses")


@pytest.mark.parametrize("key", ["model__name", "task__name", "task__loss"])
def test_a_folder_that_names_other_code_is_refused_in_one_line_and_runs_none(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, mark = write_model(tmp_path / "run"), tmp_path / "mark"
    group = key.partition("__")[0]
    change(model, **{key: "os.system"})
    if key.endswith("name"):
        change(model, **{f"{group}__kwargs": {"command": f"touch {mark}"}})
    assert commands.predict(arguments(model, write_image(tmp_path))) == ExitCode.USAGE
    error = capsys.readouterr().err
    named = f"{model}/config.yaml: {key.replace('__', '.')}=os.system: a model folder may name"
    assert error.startswith(f"predict: {named}") and error.count("\n") == 1
    assert not mark.exists()


def test_code_that_the_configuration_does_not_name_is_not_run(tmp_path: Path) -> None:
    model = write_model(tmp_path / "run", "model.name=resnet18")
    assert not (model / "code").exists()
    package = model / "code" / "project"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('ran')")
    (package / "models.py").write_text("raise SystemExit('ran')")
    assert load_model(model, CPU).predict(IMAGES).shape == (3, len(CLASSES))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("resnet18", {"progress": False}),
        ("timm/resnet10t", {"checkpoint_path": "/no/such/weights.pt"}),
    ],
)
def test_loading_fetches_and_reads_no_other_weights(
    name: str, kwargs: dict[str, object], tmp_path: Path
) -> None:
    if name.startswith("timm/"):
        pytest.importorskip("timm", reason="needs the extra timm")
    model = write_model(tmp_path, f"model.name={name}")
    expected = load_model(model, CPU).predict(IMAGES)
    change(model, model__weights="/no/such/weights.pt", model__kwargs=kwargs)
    torch.testing.assert_close(load_model(model, CPU).predict(IMAGES), expected)


def test_weights_of_another_network_are_one_line(tmp_path: Path) -> None:
    model = write_model(tmp_path / "run")
    change(model, model__kwargs={"width": 16})
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be loaded .*size mismatch"):
        load_model(model, CPU)
    state = load_file(model / "model.safetensors")
    change(model, model__kwargs={"width": 8})
    save_file({name: state[name] for name in list(state)[:-1]}, model / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be loaded .*Missing key"):
        load_model(model, CPU)


FULL_DISK = """
import errno, resource, sys
from pathlib import Path
from tests.entry_point.serving.served_model import write_model
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    write_model(Path(sys.argv[1]))
except OSError as error:
    files = sorted(path.name for path in Path(sys.argv[1], "model").iterdir())
    print(errno.errorcode[error.errno], error.filename, files)
"""


def test_weights_for_which_there_is_no_room_are_named_and_leave_nothing(tmp_path: Path) -> None:
    done = forkserver.start(["-c", FULL_DISK, str(tmp_path)], tmp_path / "log")
    file = tmp_path / "model" / "model.safetensors"
    assert done.communicate() == (f"EFBIG {file} []\n", "") and done.returncode == 0


def on_cpu(config: TrainConfig, train: Source, _device: torch.device) -> Task:
    return build_task(config, train, CPU)


def test_a_gpu_computes_in_float32_not_in_tf32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    model = write_model(tmp_path)
    load_model(model, CPU)
    assert torch.backends.cudnn.allow_tf32
    # Stands in for a GPU.
    monkeypatch.setattr(nn.Module, "to", lambda module, *_, **__: module)
    monkeypatch.setattr("entry_point.model_folder.build_task", on_cpu)
    load_model(model, torch.device("cuda", 1))
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_predictions_on_a_gpu_match_the_cpus(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    gpu, cpu = (load_model(model, torch.device(name)) for name in ("cuda", "cpu"))
    torch.testing.assert_close(gpu.predict(IMAGES), cpu.predict(IMAGES), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "a: &a [1]\nb: *a\n"),
        ("config.yaml", "[1, 2]"),
        ("config.yaml", "[" * 100_000),
        ("config.yaml", "x" * 100_000 + ": 1"),
        ("config.yaml", "model: {name: " + "x" * 100_000 + "}"),
        ("config.yaml", "model: {name: project." + "x" * 100_000 + "}"),
        ("config.yaml", "model: {name: resnet18, kwargs: {" + "x" * 100_000 + ": 1}}"),
        ("config.yaml", "task: {name: " + "x" * 100_000 + "}"),
        ("classes.json", '{"cat": 0}'),
        ("classes.json", "[1, 2, 3]"),
        ("classes.json", "[" * 100_000),
        ("classes.json", json.dumps(["x" * 100_000] * 3)),
        ("head.json", "[1]"),
        ("head.json", '{"mean": [[1], [1, 2]]}'),
    ],
)
def test_a_file_of_another_shape_is_one_line(name: str, content: str, tmp_path: Path) -> None:
    model = write_model(tmp_path)
    (model / name).write_text(content)
    with pytest.raises(ModelError, match=re.escape(name)) as refused:
        load_model(model, CPU)
    assert len(str(refused.value).splitlines()) == 1 and len(str(refused.value)) < 500


def test_a_regression_without_its_units_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path, "task=regression", kind="numbers")
    (model / "head.json").unlink()
    with pytest.raises(ModelError, match=r"head\.json cannot be loaded .*No such file"):
        load_model(model, CPU)


@pytest.mark.parametrize("command", [commands.predict, commands.evaluate, commands.serve])
@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml"])
def test_a_file_of_the_model_is_answered_with_its_folder(
    command: Callable[[list[str]], int],
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = write_model(tmp_path)
    options = [] if command is commands.serve else [f"output_dir={tmp_path / 'output'}"]
    assert command([f"model_dir={model / name}", *options]) == ExitCode.USAGE
    assert f"model_dir={model / name}: is a file; set {model}\n" in capsys.readouterr().err


def test_a_server_is_told_how_an_archive_becomes_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (archive := tmp_path / "my model.tar.gz").touch()
    assert commands.serve([f"model_dir={archive}"]) == ExitCode.USAGE
    wanted = f"is a file; unpack it with `tar -xf '{archive}' -C FOLDER`, and set FOLDER"
    assert f"model_dir={archive}: {wanted}\n" in capsys.readouterr().err


def test_a_name_that_occurs_twice_is_refused_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer has a number for each name."""
    model, images = write_model(tmp_path), write_image(tmp_path)
    (model / "classes.json").write_text(json.dumps(["cat", "dog", "cat"]))
    for command, given in (
        (commands.predict, arguments(model, images)),
        (commands.evaluate, arguments(model, images, "data.root")),
        (commands.serve, [f"model_dir={model}", "serve.host=127.0.0.1", "serve.port=0"]),
    ):
        assert command(given) == ExitCode.USAGE
        assert "classes.json: 'cat' occurs twice: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["config.yaml", "classes.json", "head.json", "code/project/net.py"]
)
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    code = "from project.models import small_net\ndef net(num_classes): return small_net(3, 8)\n"
    network = small_net(3, width=8)
    model = write_model(tmp_path, "model.name=project.net.net", network=network, code=code)
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(ModelError, match=re.escape(name)):
        load_model(model, CPU)
