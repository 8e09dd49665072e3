"""A setting names a known word or the dotted path of the user's own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import call, resolve

KNOWN = {"sgd": 1, "adamw": 2}


def test_a_known_word_is_found_before_a_module_of_that_name() -> None:
    assert resolve("optim.name", "adamw", KNOWN) == 2


def test_a_dotted_path_is_imported() -> None:
    assert resolve("model.name", "os.path.join", KNOWN) is __import__("os").path.join


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "adamv",
            "optim.name=adamv: must be one of sgd, adamw, or a dotted path to your own code; did "
            "you mean adamw?",
        ),
        (
            "os.path.joint",
            "optim.name=os.path.joint: os.path has no joint; did you mean join?",
        ),
        (
            "no_such.package.thing",
            "optim.name=no_such.package.thing: no_such.package cannot be imported "
            "(ModuleNotFoundError: No module named 'no_such')",
        ),
        (
            ".thing",
            "optim.name=.thing: must be one of sgd, adamw, or a dotted path to your own code",
        ),
    ],
)
def test_what_is_neither_is_one_line_that_names_the_key(name: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("optim.name", name, KNOWN)
    assert str(caught.value) == error


def test_own_code_that_imports_a_package_of_earlier_learns_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = "from entry_point.supervisor import devices\n"
    (tmp_path / "earlier_task.py").write_text(earlier)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"entry_point\.supervisor is retired: use entry_point\.job"
    ):
        resolve("task.name", "earlier_task.Alarm", {})


def test_a_module_that_fails_while_imported_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "half_written.py").write_text("\nraise RuntimeError('first\\nsecond')")
    monkeypatch.syspath_prepend(tmp_path)
    reason = re.escape(f"half_written cannot be imported (RuntimeError: first, at {file}:2)")
    with pytest.raises(ConfigError, match=reason):
        resolve("model.name", "half_written.net", {})


def build(size: int, *, width: int = 8, depth: int = 2) -> tuple[int, int, int]:
    return size, width, depth


def needy(size: int, *, heads: int) -> tuple[int, int]:
    return size, heads


def test_kwargs_reach_the_function_beside_what_the_job_passes() -> None:
    assert call("model.kwargs", build, {"width": 4}, size=3) == (3, 4, 2)


@pytest.mark.parametrize(
    ("function", "kwargs", "error"),
    [
        (
            build,
            {"widht": 4},
            "model.kwargs.widht=4: no such argument; build takes width, depth; did you mean width?",
        ),
        (build, {"size": 4}, "model.kwargs.size=4: is set by the job; remove it"),
        (
            needy,
            {},
            "model.kwargs={}: needy: missing a required argument: 'heads'",
        ),
    ],
)
def test_wrong_kwargs_are_one_line_that_names_the_key(
    function: Callable[..., Any], kwargs: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        call("model.kwargs", function, kwargs, size=3)
    assert str(caught.value) == error


def test_an_error_inside_the_function_is_not_taken_for_wrong_kwargs() -> None:
    def broken() -> int:
        raise TypeError("inside")

    with pytest.raises(TypeError, match="inside"):
        call("model.kwargs", broken, {})
