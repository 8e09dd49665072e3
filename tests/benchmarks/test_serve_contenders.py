"""The engines that the benchmark of the server compares."""

from pathlib import Path

import pytest
import torch


def test_every_engine_computes_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.serving import serve_contenders
    from benchmarks.serving.litserve_app import ENGINES

    monkeypatch.setattr(serve_contenders, "CLASSES", 10)
    folder = serve_contenders.write_model(tmp_path / "run")
    serve_contenders.export_onnx(folder)
    images = torch.randint(0, 256, (3, 3, 224, 224), dtype=torch.uint8)
    expected = ENGINES["torch"](folder)(images)
    for engine in ENGINES.values():
        predict = engine(folder)
        assert torch.allclose(predict(images), expected, atol=1e-4)
        assert torch.allclose(predict(images[:1]), expected[:1], atol=1e-4)
