"""The server on a GPU."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from entry_point.job.text import counted
from entry_point.model_folder import load_model
from tests.entry_point.prediction.predicted import center_crop
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import encoded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 2e-2)])
def test_answers_match_the_cpus_alone_and_in_batches(
    serve: Serve, served_model: Path, precision: str, tolerance: float
) -> None:
    server = serve(f"model_dir={served_model}", f"serve.precision={precision}")
    gpus = torch.cuda.device_count()
    assert f"{counted(gpus, 'worker')} on {counted(gpus, 'GPU')}" in server.log()
    photos = [encoded(size=(50 + number, 40)) for number in range(16)]
    model = load_model(served_model, torch.device("cpu"))
    expected = model.predict(torch.stack([center_crop(photo, 32, 36) for photo in photos]))
    alone = [server.invoke(photo) for photo in photos[:2]]
    with ThreadPoolExecutor(len(photos)) as pool:
        together = list(pool.map(server.invoke, photos))
    for answers in (alone, together):
        found = [list(each.json()["predictions"][0]["probabilities"].values()) for each in answers]
        torch.testing.assert_close(
            torch.tensor(found), expected[: len(found)], atol=tolerance, rtol=0
        )


def test_a_damaged_image_among_others_is_the_only_one_refused(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}")
    photo = encoded()
    with ThreadPoolExecutor(8) as pool:
        bodies = [photo, photo[:100], *[photo] * 6]
        answers = list(pool.map(server.invoke, bodies))
    assert [answer.status for answer in answers] == [200, 400, *[200] * 6]
    assert "image 0" in json.loads(answers[1].body)["error"]
