"""`trainer.onnx=true`: a file that computes what the model does."""

from pathlib import Path

import pytest
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.training.results import onnx_file
from entry_point.training.results.onnx_file import check_same, on_cpu, require_onnx, save_onnx
from tests.entry_point.training.tasks.label_sources import PROBABILITIES
from tests.own_models import tiny_net


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
    model = tiny_net(3)
    save_onnx(tmp_path, model, config.data, PROBABILITIES)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for size in (1, 2, 7):
        images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8)
        (found,) = session.run(None, {"images": images.numpy()})
        expected = on_cpu(model, config.data, PROBABILITIES.head)(images).detach()
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-4, rtol=0)


def test_a_missing_onnx_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(ConfigError, match=r"trainer\.onnx=true: needs no_such_package: run "):
        require_onnx()
