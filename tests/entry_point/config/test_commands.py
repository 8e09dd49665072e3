"""The commands that a run prints: a shell, make and the program read the run's settings in them."""

import json
import subprocess
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from entry_point.config.commands import check_command, index_command, make
from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import OF_SAMPLES, DataConfig, TableConfig
from entry_point.config.evaluate_config import EvaluateConfig
from entry_point.config.packing_config import CheckConfig, OptimizeConfig
from entry_point.config.predict_config import PredictConfig
from entry_point.config.train_config import load_train_config
from entry_point.job.run_folder import LINK_LATEST, RunFolder
from entry_point.training.results.summary import _test_command
from tests import commands

ROOT = Path(__file__).parents[3]
PATHS = [
    *("photos", "/data/photos", "../photos", "./a-b", "2024_11_27", "1e5", "null", "True", "nan"),
    *("/data/photos (1)", "photos (1)", "choice(a)", "a b", " a", "a ", "/a,b", "a,b", "[a]", "{a"),
    *("it's", "/it's", '/a"b', "/$HOME/x", "${HOME}", "/${x}", "`id`", "/a\\b", "a\\", "/a\\'b"),
    *("größe", "データ", "/データ 🖼", "a=b", "/year=2024/", "a#b", "/a;b&c|d", "/a!b"),
    *("*", "~x", "/~"),
    *("/a{b,c}d", "s3://b/x/", "12:30", "a:1", "%41", "-x", "+x", "$(id)", "$$", "'", '"', "\\"),
]


def arguments(command: str) -> list[str]:
    """What the program behind a printed command gets from a shell and make."""
    assert command.startswith("make ")
    shown = subprocess.run(
        ["bash", "-c", command.replace("make ", "make -n ", 1)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (line,) = (line for line in shown.splitlines() if " -m entry_point " in line)
    echo = "python3 -c 'import json, sys; print(json.dumps(sys.argv[4:]))'"
    typed = ["bash", "+B", "-c", line.replace(".venv/bin/python", echo)]
    printed = subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: list[str] = json.loads(printed)
    return found


def quoted(message: str) -> str:
    """The command in a message."""
    return message.split("`")[1]


def test_any_path_survives_shell_make_and_hydra() -> None:
    kwargs = {f"k{number}": path for number, path in enumerate(PATHS)}
    settings = {f"data.kwargs.{key}": path for key, path in kwargs.items()}
    command = make("dataset", {"data.format": "mine.files", **settings})
    read = load_config("optimize", OptimizeConfig, arguments(command))
    assert read.data["kwargs"] == kwargs


SETTINGS: list[dict[str, Any]] = [
    {"root": "photos"},
    {"root": "/data/my photos (1)", "gray_bits": 12},
    {"root": "2024_11_27", "format": "folder", "val_fraction": 0.25},
    {
        "root": "/a b/labels.csv",
        "format": "manifest",
        "images": "/it's",
        "table": TableConfig(
            path="1_0",
            prefix="s3://b/$x/",
            labels=["a b", "c,d", "007", "it's"],
            split="true",
            kind="labels",
            separator=";",
        ),
    },
    {"root": "p", "format": "parquet", "table": TableConfig(kind="numbers", labels=["a"])},
    {"root": "data/demo", "format": "demo", "kwargs": {"seed": 3, "train_images": 20}},
    {"root": "x", "format": "folder", "index_root": "/idx", "image_size": 64, "hflip": 0.1},
    {"root": "m", "format": "masks", "images": "i"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: each["root"])
def test_the_advised_programs_read_the_dataset_as_the_run_does(settings: dict[str, Any]) -> None:
    data = DataConfig(**settings)
    defaults = {name: getattr(DataConfig(), name) for name in OF_SAMPLES}
    expected = replace(data, **{**defaults, "max_bad_fraction": 1.0})
    root = settings["root"]
    checking = load_config("check_dataset", CheckConfig, arguments(quoted(check_command(data))))
    assert checking.dataset() == expected
    index = load_config("optimize", OptimizeConfig, arguments(index_command(data)))
    assert (index.source, index.output, index.output_format) == (root, data.index_root, "index")
    assert index.gray_bits == data.gray_bits
    assert index.dataset(root) == replace(expected, index_root=None)


def test_each_setting_of_data_is_of_the_dataset_or_of_samples() -> None:
    """A new setting goes into the advised commands unless it is named in OF_SAMPLES."""
    assert {field.name for field in fields(DataConfig)} - {*OF_SAMPLES} == {
        *("format", "kwargs", "root", "images", "table", "val_fraction", "gray_bits"),
        *("val_top_up", "index_root"),
    }


@pytest.mark.parametrize(
    ("name", "schema", "given"),
    [
        ("predict", PredictConfig, "data.image_size=320"),
        ("optimize", OptimizeConfig, "data.image_size=224"),
        ("check_dataset", CheckConfig, "data.max_bad_fraction=0.1"),
    ],
)
def test_a_setting_of_samples_is_refused_where_none_are_made(
    name: str, schema: type, given: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{given}: changes nothing here, .*; drop it$"):
        load_config(name, schema, ["root=x", given] if name == "check_dataset" else [given])


def test_a_packed_dataset_is_checked_without_the_index_root_that_it_does_not_use() -> None:
    data = DataConfig(root="data/packed", format="shards", gray_bits=12, index_root="elsewhere")
    checking = arguments(quoted(check_command(data)))
    assert checking == ["root=data/packed", "data.format=shards", "data.gray_bits=12"]


def test_the_advised_commands_run(tmp_path: Path) -> None:
    """With a table in a folder of an unusual name, and gray images of 12 bits."""
    folder = tmp_path / "my $et (it's 2024)"
    (folder / "images, all").mkdir(parents=True)
    rows = ["1_0,is it,part"]
    for number in range(8):
        gray = numpy.full((60, 80), 3900, numpy.uint16)
        Image.fromarray(gray).save(folder / "images, all" / f"{number}.png")
        rows.append(
            f"{number}.png,{'cat' if number % 2 else 'dog'},{'val' if number > 5 else 'train'}"
        )
    (folder / "labels.csv").write_text("\n".join(rows))
    data = DataConfig(
        root=str(folder / "labels.csv"),
        images=str(folder / "images, all"),
        gray_bits=12,
        table=TableConfig(path="1_0", labels=["is it"], split="part"),
    )
    assert commands.check_dataset(arguments(quoted(check_command(data)))) == 0
    assert commands.optimize(arguments(index_command(data))) == 0


@pytest.mark.parametrize(
    ("overrides", "latest", "typed"),
    [
        (["data.root=photos"], True, ["split=test"]),
        (["data.root=photos"], False, ["split=test", "model_dir=runs/a/model"]),
        (
            ["data.root=photos", "pipeline=pillow", "data.table.path=x"],
            True,
            ["split=test", "pipeline.engine=workers", "pipeline.decoder=pillow"],
        ),
        (
            ["data.root=x", "data.format=mine.files"],
            True,
            ["split=test", "data.format=mine.files"],
        ),
        (
            ["data=manifest", "data.table.labels=[a b,c]", "data.table.kind=labels"],
            True,
            [
                *("split=test", "data.root=FOLDER", "data.format=manifest"),
                *("data.table.labels=['a b',c]", "data.table.kind=labels"),
            ],
        ),
    ],
)
def test_the_command_for_test_images_names_this_run(
    overrides: list[str],
    latest: bool,
    typed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path / "runs/a")
    monkeypatch.setenv(LINK_LATEST, str(run.root) if latest else "another")
    config, _ = load_train_config(overrides, has_channels=True)
    found = arguments(_test_command(config, run))
    assert found == typed
    evaluating = load_config("evaluate", EvaluateConfig, found)
    if config.data.root is None:
        changed = evaluating.changed(replace(config.data, root="x"))
        assert asdict(changed) == {**asdict(config.data), "root": "FOLDER", "access": "map"}
    assert evaluating.pipeline == config.pipeline


def test_a_command_of_plain_settings_is_plain() -> None:
    assert make("evaluate", {"split": "test"}) == 'make evaluate ARGS="split=test"'
    settings = {"root": "/data/photos (1)", "images": "/x"}
    assert make("check-dataset", settings) == (
        "make check-dataset ARGS=\"'root=/data/photos (1)' images=/x\""
    )
