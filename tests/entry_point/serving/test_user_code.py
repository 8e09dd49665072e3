"""A model's own code/inference.py is called as SageMaker's toolkit calls it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from entry_point.contract import exit_codes
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import CLASSES, with_code
from tests.entry_point.serving.test_invocations import as_json, encoded

OWN = """
import helper
def model_fn(folder, context):
    return (folder, context.system_properties["gpu_id"])
def input_fn(body, content_type):
    if content_type == "text/csv":
        return body
    raise ValueError(f"unknown {content_type}")
def predict_fn(data, model, context):
    if data == "crash":
        raise KeyError("secret")
    return data + helper.SUFFIX
def output_fn(prediction, accept):
    return prediction.upper(), "text/plain"
"""


def test_all_four_functions_replace_ours(serve: Serve, served_model: Path, tmp_path: Path) -> None:
    model = with_code(served_model, tmp_path / "model", OWN)
    (model / "code" / "helper.py").write_text("SUFFIX = '!'")
    server = serve(f"model_dir={model}")
    server.wait_until_ready()
    answer = server.invoke(b"h\xc3\xa9", "text/csv")
    assert (answer.status, answer.body.decode()) == (200, "HÉ!")
    assert answer.headers["content-type"].startswith("text/plain")
    refused = server.invoke(b"x", "image/png")
    assert (refused.status, refused.json()) == (400, {"error": "unknown image/png"})
    crashed = server.invoke(b"crash", "text/csv")
    assert crashed.status == 500
    assert crashed.json() == {"error": "the model failed; the server's log has the reason"}
    assert "KeyError: 'secret'" in server.log()
    assert server.invoke(b"\xff", "text/csv").status == 400
    assert server.invoke(b"again", "text/csv").body == b"AGAIN!"


def test_the_precision_of_own_code_cannot_be_set_from_outside(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    code = "def predict_fn(data, model):\n    return data\n"
    model = with_code(served_model, tmp_path / "model", code)
    server = serve(f"model_dir={model}", "serve.precision=bf16")
    assert server.process.wait(120) == exit_codes.USAGE
    assert "serve.precision=bf16: the model's code/inference.py predicts by" in server.log()


def test_an_own_output_fn_formats_our_predictions(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    code = "def output_fn(predictions, accept):\n    return f'{len(predictions)} {accept}'\n"
    server = serve(f"model_dir={with_code(served_model, tmp_path / 'model', code)}")
    server.wait_until_ready()
    answer = server.invoke(as_json([encoded()] * 3), "application/json", Accept="text/x-count")
    assert (answer.body, answer.headers["content-type"]) == (
        b"3 text/x-count",
        "text/x-count; charset=utf-8",
    )
    assert server.invoke(b"damaged").status == 400


def test_own_code_can_be_ignored(serve: Serve, served_model: Path, tmp_path: Path) -> None:
    model = with_code(served_model, tmp_path / "model", "raise SystemError('ran')")
    server = serve(f"model_dir={model}", "serve.user_code=false")
    server.wait_until_ready()
    assert server.invoke(encoded()).json()["predictions"][0]["class"] in CLASSES


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemError('ran')", "cannot be imported (SystemError: ran)"),
        ("def infer_fn(): pass", "defines none of model_fn, input_fn"),
    ],
)
def test_code_that_cannot_be_used_is_named(
    serve: Serve, served_model: Path, tmp_path: Path, code: str, words: str
) -> None:
    server = serve(f"model_dir={with_code(served_model, tmp_path / 'model', code)}")
    assert server.process.wait() == 2
    assert words in server.log().splitlines()[-1]


def test_the_file_that_training_wrote_is_not_taken_for_own_code(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}")
    server.wait_until_ready()
    assert "has its own" not in server.log()


TOOLKIT = """
class BaseInferenceToolkitError(Exception):
    def __init__(self, status_code, message, phrase):
        super().__init__(status_code, message, phrase)
"""
UNDER_TOOLKIT = """
import sys, json
sys.path[:0] = sys.argv[1:]
import inference
from sagemaker_inference.errors import BaseInferenceToolkitError
found = []
for call in (
    lambda: inference.input_fn("{", "application/json"),
    lambda: inference.input_fn(b"x", "image/png"),
    lambda: inference.input_fn(b"x", "text/csv"),
    lambda: inference.output_fn([], "text/html"),
):
    try:
        call()
    except BaseInferenceToolkitError as error:
        found.append([error.status_code, error.message == error.phrase])
print(json.dumps(found))
"""


def test_under_the_toolkit_wrong_requests_are_its_errors_with_their_own_status(
    served_model: Path, tmp_path: Path
) -> None:
    """sagemaker_inference.transformer answers with 500 for every other exception."""
    package = tmp_path / "sagemaker_inference"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "errors.py").write_text(TOOLKIT)
    shutil.copytree(served_model / "code", tmp_path / "code")
    command = [sys.executable, "-c", UNDER_TOOLKIT, str(tmp_path), str(tmp_path / "code")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[400, True], [400, True], [415, True], [406, True]]
