"""The exported program deploys without this code, on any device and torch that can load it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from entry_point import inference
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.contract.run_folder import RunFolder
from entry_point.training.results import onnx_file
from entry_point.training.results.model_files import check_same, exported, on_cpu
from entry_point.training.results.onnx_file import require_onnx, save_onnx
from tests.entry_point.training import forked
from tests.entry_point.training.results.conftest import OVERRIDES
from tests.entry_point.training.tasks.label_sources import PROBABILITIES
from tests.own_models import tiny_net

DEPLOYED = """
import json, sys
sys.path.insert(0, sys.argv[1] + "/code")
import inference
model = inference.model_fn(sys.argv[1])
body = open(sys.argv[2], "rb").read()
data = inference.input_fn(body, "image/jpeg")
print(inference.output_fn(inference.predict_fn(data, model), "application/json"))
print(inference.output_fn(inference.predict_fn(data, model), "text/csv"))
print(sorted(name for name in sys.modules if name.startswith(("entry_point", "custom_op"))))
"""


def test_the_model_folder_deploys_without_this_code(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    image = next((photo_folder / "val").rglob("*.jpg"))
    command = [sys.executable, "-c", DEPLOYED, str(run / "model"), str(image)]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    answer, line, _, own_modules = printed.stdout.splitlines()
    prediction = json.loads(answer)["predictions"][0]
    assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert line.split(",")[0] == prediction["class"]
    assert own_modules == "[]"


def test_a_program_moved_to_another_device_keeps_nothing_on_the_cpu(tmp_path: Path) -> None:
    """A checked or constant CPU tensor in it would fail the first prediction on a GPU."""
    config, _ = load_train_config(["data=folder", "data.image_size=32"])
    path = tmp_path / "model.pt2"
    answers = on_cpu(tiny_net(3), config.data, PROBABILITIES.head)
    torch.export.save(exported(answers, config.data), path)
    meta = inference.load_program(path, torch.device("meta"), torch.__version__)
    assert isinstance(meta, torch.fx.GraphModule)
    assert not [node for node in meta.graph.nodes if "cpu" in f"{node.args} {node.kwargs}"]
    assert meta(torch.zeros(5, 3, 32, 32, dtype=torch.uint8, device="meta")).shape == (5, 3)


@pytest.mark.parametrize("wrong_size", [1, 3])
def test_a_program_that_computes_something_else_is_refused(wrong_size: int) -> None:
    """Also if it does so for some batch sizes only."""
    config, _ = load_train_config(["data=folder", "data.image_size=32"])
    right = on_cpu(tiny_net(3), config.data, PROBABILITIES.head)

    def wrong(images: torch.Tensor) -> torch.Tensor:
        return right(images) + 0.01 * (len(images) == wrong_size)

    check_same(right, right, config.data)
    with pytest.raises(ValueError, match=rf"0\.01 off in a batch of {wrong_size}"):
        check_same(right, wrong, config.data)


def test_the_onnx_file_computes_what_torch_does_for_every_batch_size(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    config, _ = load_train_config(["data=folder", "data.image_size=32"])
    model, run = tiny_net(3), RunFolder(tmp_path)
    run.model.mkdir()
    save_onnx(run, model, config.data, PROBABILITIES)
    session = onnxruntime.InferenceSession(run.model / "model.onnx")
    for size in (1, 2, 7):
        images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8)
        (found,) = session.run(None, {"images": images.numpy()})
        expected = on_cpu(model, config.data, PROBABILITIES.head)(images).detach()
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-4, rtol=0)


def test_a_missing_onnx_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(ConfigError, match=r"trainer\.onnx=true: needs no_such_package: run "):
        require_onnx()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_predictions_on_a_gpu_match_the_cpus(run: Path) -> None:
    model = inference.model_fn(str(run / "model"))
    assert model.device.type == "cuda"
    cpu = inference.load_program(run / "model" / "model.pt2", torch.device("cpu"), "")
    batch = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(inference.predict_batch(batch, model), cpu(batch), atol=1e-3, rtol=0)


def test_the_error_for_an_unloadable_program_names_both_torch_versions(
    run: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(run / "model", model)
    (model / "model.pt2").write_bytes(b"of another torch")
    settings = json.loads((model / "inference.json").read_text())
    (model / "inference.json").write_text(json.dumps({**settings, "torch": "9.9"}))
    with pytest.raises(RuntimeError, match=rf"torch 9\.9 .* torch {re.escape(torch.__version__)}"):
        inference.model_fn(str(model))


def test_a_model_that_cannot_be_exported_still_gets_the_other_results(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [
        "model.name=tests.own_models.untraceable_net",
        "trainer.report=true",
    ]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    assert "no model.pt2: " in (tmp_path / "log").read_text()
    assert (tmp_path / "model" / "model.pt").is_file()
    assert (tmp_path / "output" / "data" / "report.html").is_file()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


FULL_DISK = """
import errno, pathlib, resource, sys
from entry_point.config.data_config import DataConfig
from entry_point.contract.run_folder import RunFolder
from entry_point.training.results.model_files import save_program
from tests.entry_point.training.tasks.label_sources import PROBABILITIES
from tests.own_models import tiny_net
run = RunFolder(pathlib.Path(sys.argv[1]))
run.create()
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
try:
    save_program(run, tiny_net(8), DataConfig(image_size=32, resize=32), PROBABILITIES)
except OSError as error:
    print(errno.errorcode[error.errno], error.filename, list(run.model.iterdir()))
"""


def test_a_program_for_which_there_is_no_room_is_named(tmp_path: Path) -> None:
    """torch's own writer ends the process if it cannot finish its file."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    expected = f"EFBIG {tmp_path}/model/{inference.PROGRAM} []\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_a_continued_run_leaves_no_result_of_earlier_weights(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / run.name
    shutil.copytree(run, root)
    (root / "log").unlink()
    cache = root / "model" / "code" / "__pycache__"  # of whoever tried inference.py
    cache.mkdir(exist_ok=True)
    (cache / "inference.cpython-311.pyc").touch()
    other_settings = [*OVERRIDES, "trainer.epochs=9", "trainer.report=false"]
    assert forked.run(root, photo_folder, other_settings) == 0
    assert "epochs: 9" in (root / "model" / "training.yaml").read_text()
    assert files(root / "model") == {"model.pt", "classes.json", "training.yaml"}
    assert files(root / "output" / "data") >= {"metrics.jsonl", "summary.png"}
    assert not (root / "output" / "data" / "report.html").exists()
    assert "report.html" not in (root / "log").read_text()


def test_results_of_earlier_weights_are_removed_before_new_weights_are_written(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / run.name
    shutil.copytree(run, root)
    (root / "model" / "model.pt").unlink()
    (root / "model" / "model.pt").mkdir()  # the weights cannot be written
    (root / "model" / "code" / "requirements.txt").write_text("pillow\n")
    (root / "model" / "code" / "own.py").touch()
    assert forked.run(root, photo_folder, OVERRIDES) == 1
    assert files(root / "model") == {"model.pt", "code", "code/own.py"}
    assert not {"report.html", "summary.png"} & files(root / "output" / "data")
