"""Settings that name your own code are checked on the host, by reading the code."""

import ast
import inspect
import re
from functools import partial
from inspect import Parameter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.contract.own_code import PROGRAM
from launch.request import job_config
from launch.request.code.dotted_paths import LOGGER, SEAMS, Seam, check, code_problems, value_in
from launch.request.code.module_source import ModuleSource
from launch.request.launch_config import Target

MODELS = """
import functools
import torch  # not on the host
from torch import nn
from .parts import Deep as Deeper, helper
from mine.parts import Wide

def net(num_classes, width=16, *, depth): ...
def any_net(num_classes, **options): ...
async def slow(num_classes): ...
@functools.cache
def decorated(): ...
TABLE = {"a": 1}
first, (second, third) = 1, (2, 3)
alias = functools.partial(net, depth=1)
if torch.cuda.is_available():
    def only_there(num_classes): ...
else:
    only_there = None
try:
    import quick
except ImportError:
    quick = None

class Net(nn.Module):
    def __init__(self, num_classes, width: int = 3): ...
class Child(Net):
    def forward(self, x): ...
class Plain:
    def forward(self, x): ...
class Foreign(nn.Module): ...
class Made(metaclass=type):
    pass
"""
PARTS = """
class Deep:
    def __init__(self, num_classes, layers): ...
class Wide(Deep): ...
def helper(x): ...
"""
MODEL = SEAMS[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    texts = {"mine/__init__.py": "", "mine/models.py": MODELS, "mine/parts.py": PARTS}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "mine/open.py").write_text("from torchvision.models import *\n")
    (tmp_path / "mine/lazy.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "mine/torn.py").write_text("x = 1\ndef net(:\n")
    (tmp_path / "mine/binary.py").write_bytes(b"x = 1\0")
    return tmp_path


def refusal(
    root: Path, path: str, seam: Seam = MODEL, kwargs: dict[str, object] | None = None
) -> str:
    """The line for a setting; empty if it passes."""
    try:
        check(seam, path, kwargs or {}, root)
    except ConfigError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("path", "kwargs", "line"),
    [
        ("mine.model.net", {}, "there is no module mine.model; did you mean mine.models?"),
        ("mine.models.nett", {}, "mine.models has no nett; did you mean net?"),
        ("mine.models", {}, "model.name=mine.models: mine has no models"),
        (
            "mine.models.net",
            {"depth": 1, "widht": 2},
            "no such argument; net takes width, depth; did you mean width?",
        ),
        ("mine.models.net", {}, "model.kwargs={}: net: missing a required argument: 'depth'"),
        (
            "mine.models.net",
            {"depth": 1, "num_classes": 2},
            "model.kwargs.num_classes=2: is set by",
        ),
        ("mine.models.Net", {"self": 1}, "model.kwargs.self=1: no such argument; Net takes width"),
        (
            "mine.models.Child",
            {"depth": 1},
            "model.kwargs.depth=1: no such argument; Child takes width",
        ),
        ("mine.models.Plain", {}, "model.kwargs={}: Plain: got an unexpected"),
        ("mine.models.Deeper", {}, "Deeper: missing a required argument: 'layers'"),
        (
            "mine.models.Wide",
            {"layer": 1},
            "no such argument; Wide takes layers; did you mean layers?",
        ),
        ("mine.models.helper", {}, "helper: missing a required argument: 'x'"),
        ("mine.torn.net", {}, "mine/torn.py, line 2: not Python "),
        ("mine.binary.net", {}, "mine/binary.py, line "),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
def test_what_the_job_would_refuse_is_refused_here(
    root: Path, path: str, kwargs: dict[str, object], line: str
) -> None:
    assert line in refusal(root, path, kwargs=kwargs)


@pytest.mark.parametrize(
    "path",
    [
        *("torchvision.models.resnet18", "elsewhere.net", "mine.open.anything", "mine.lazy.net"),
        *(f"mine.models.{name}" for name in ("any_net", "decorated", "alias", "only_there")),
        *(f"mine.models.{name}" for name in ("quick", "second", "third", "TABLE", "Foreign")),
        *("mine.models.Made", "mine.models.slow", "mine.models.torch"),
    ],
)
def test_what_the_text_does_not_tell_passes(root: Path, path: str) -> None:
    assert refusal(root, path, kwargs={"width": 1}) == ""


def test_each_setting_is_checked_as_the_job_calls_it(root: Path) -> None:
    (root / "mine/rates.py").write_text(
        "def rate(epoch, epochs, floor=0.0): ...\ndef short(epoch): ...\n"
    )
    schedule = next(seam for seam in SEAMS if seam.key == "optim.schedule")
    assert refusal(root, "mine.rates.rate", schedule, {"floor": 0.1}) == ""
    assert "too many positional" in refusal(root, "mine.rates.short", schedule)


def test_every_setting_that_the_job_resolves_is_checked_here() -> None:
    sources = [path.read_text() for path in (PROGRAM / "entry_point").rglob("*.py")]
    resolved = {key for text in sources for key in re.findall(r'\bresolve\(\s*"([\w.]+)"', text)}
    called = {key for text in sources for key in re.findall(r'\bcall\(\s*"([\w.]+)"', text)}
    seams = [*SEAMS, LOGGER]
    assert resolved <= {seam.key for seam in seams}
    assert called <= {seam.kwargs for seam in seams}


def test_every_setting_of_the_config_is_read() -> None:
    config, _ = load_train_config(["model.name=project.nothing.here"])
    (line,) = code_problems(partial(value_in, config))
    assert line.startswith("model.name=project.nothing.here: there is no module project.nothing")
    config, _ = load_train_config([])
    assert code_problems(partial(value_in, config)) == []


def test_the_launch_reports_code_that_is_not_there_with_everything_else() -> None:
    overrides = ["model.name=project.models.smallnet", "data=folder"]
    lines = job_config.training_problems(overrides, [], Target())
    assert [line.partition(":")[0] for line in lines] == [
        "data=folder",
        "model.name=project.models.smallnet",
    ]


@st.composite
def signatures(draw: st.DrawFn) -> str:
    """The argument list of a function, in Python's syntax."""
    count = st.integers(0, 3)
    first, second, third = (draw(count) for _ in range(3))
    defaults = draw(st.integers(0, first + second))
    names = [f"a{number}" for number in range(first + second)]
    shown = [
        f"{name}=1" if place >= len(names) - defaults else name for place, name in enumerate(names)
    ]
    positional = [*shown[:first], *(["/"] if first else []), *shown[first:]]
    keyword = [f"k{number}{draw(st.sampled_from(['', '=2']))}" for number in range(third)]
    star = draw(st.sampled_from(["*args", "*"] if keyword else ["*args", ""]))
    options = draw(st.sampled_from(["**options", ""]))
    return ", ".join(filter(None, [*positional, star, *keyword, options]))


@given(signatures())
def test_a_signature_is_read_as_python_reads_it(arguments: str) -> None:
    text = f"def f({arguments}): ..."
    space: dict[str, object] = {}
    exec(text, space)
    source = ModuleSource(Path(), "m", Path("m.py"))
    source.__dict__["_tree"] = ast.parse(text)
    found = source.signature("f")
    assert found is not None
    assert described(found) == described(inspect.signature(space["f"]))  # type: ignore[arg-type]


def described(signature: inspect.Signature) -> list[tuple[str, object, bool]]:
    every = signature.parameters.values()
    return [(each.name, each.kind, each.default is Parameter.empty) for each in every]
