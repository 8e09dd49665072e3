"""The code that settings name is imported and compared with the job's calls, but not called."""

import re
import sys
from pathlib import Path

import pytest

from entry_point.check_code import LOGGERS, SEAMS, main
from entry_point.contract.own_code import PROGRAM

MODELS = """
import functools
from torch import nn
from .parts import Deep as Deeper

def net(num_classes, width=16, *, depth): ...
def any_net(num_classes, **options): ...
alias = functools.partial(net, depth=1)
class Net(nn.Module):
    def __init__(self, num_classes, width: int = 3): raise RuntimeError("called")
class Child(Net): ...
"""
OTHERS = {
    "__init__.py": "",
    "models.py": MODELS,
    "parts.py": "class Deep:\n    def __init__(self, num_classes, layers): ...\n",
    "torn.py": "x = 1\ndef net(:\n",
    "needy.py": "import package_that_nobody_has\n",
    "rates.py": "def rate(epoch, epochs, floor=0.0): ...\ndef short(epoch): ...\n",
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package `mine_here`, which can be imported."""
    for name, text in OTHERS.items():
        (tmp_path / "mine_here").mkdir(exist_ok=True)
        (tmp_path / "mine_here" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("mine_here")]:
        monkeypatch.delitem(sys.modules, name)


def said(capsys: pytest.CaptureFixture[str], overrides: str) -> str:
    """The printed lines; empty if everything passes."""
    status = main(overrides.split())
    out = capsys.readouterr().out
    assert status == (1 if out else 0)
    return out


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("model.name=resnet19", "model.name=resnet19: must be a classification or segmentation"),
        ("model.name=resnet19", "did you mean resnet18"),
        ("model.name=timm/resnet19", "has no such model; did you mean resnet1"),
        ("model.name=mine_here.model.net", "mine_here.model cannot be imported (ModuleNotFound"),
        ("model.name=mine_here.models.nett", "has no nett; did you mean net?"),
        ("model.name=mine_here.torn.net", "cannot be imported (SyntaxError"),
        ("model.name=mine_here.needy.net", "No module named 'package_that_nobody_has'"),
        (
            "model.name=mine_here.models.net model.kwargs={depth:1,widht:2}",
            "model.kwargs.widht=2: no such argument; net takes width, depth; did you mean width?",
        ),
        ("model.name=mine_here.models.net", "missing a required argument: 'depth'"),
        (
            "model.name=mine_here.models.Net model.kwargs.num_classes=2",
            "model.kwargs.num_classes=2: is set by the job",
        ),
        (
            "model.name=mine_here.models.Child model.kwargs.depth=1",
            "model.kwargs.depth=1: no such argument; Child takes width",
        ),
        ("model.name=mine_here.models.Deeper", "missing a required argument: 'layers'"),
        ("optim.schedule=mine_here.rates.short", "too many positional"),
        ("loggers=[project.loggers.Csv]", "project.loggers has no Csv"),
        ("trainer.epochs=-1", "trainer.epochs=-1"),
    ],
)
def test_what_would_end_the_job_is_one_line(
    capsys: pytest.CaptureFixture[str], overrides: str, line: str
) -> None:
    out = said(capsys, overrides)
    assert line in out and out.count("\n") == 1


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "model.name=resnet50",
        "model.name=timm/vit_tiny_patch16_224",
        "model.name=mine_here.models.Net",
        "model.name=mine_here.models.any_net model.kwargs.anything=1",
        "model.name=mine_here.models.alias",
        "model.name=torchvision.models.resnet18",
        "model.name=package_of_the_image.net",
        "optim.schedule=mine_here.rates.rate optim.schedule_kwargs.floor=0.1",
    ],
)
def test_what_the_job_can_call_passes_and_is_not_called(
    capsys: pytest.CaptureFixture[str], overrides: str
) -> None:
    assert said(capsys, overrides) == ""


@pytest.mark.parametrize("key", [seam.key for seam in SEAMS])
def test_every_setting_is_read(capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert said(capsys, f"{key}=project.nothing.here").startswith(f"{key}=project.nothing.here: ")


def test_all_problems_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "model.name=resnet19 task.loss=project.nothing.here loggers=[project.no.Csv]"
    out = said(capsys, wrong)
    assert [line.partition("=")[0] for line in out.splitlines()] == [
        "model.name",
        "task.loss",
        "loggers",
    ]


def test_every_setting_that_the_job_resolves_is_checked_here() -> None:
    files = [path for path in (PROGRAM / "entry_point").rglob("*.py") if path.stem != "check_code"]
    text = "\n".join(path.read_text() for path in files)
    assert set(re.findall(r'\bresolve\(\s*"([\w.]+)"', text)) == {
        LOGGERS,
        *(seam.key for seam in SEAMS),
    }
    called = set(re.findall(r'\bcall\(\s*"([\w.]+)"', text))
    assert called == {seam.kwargs for seam in SEAMS if seam.kwargs}
