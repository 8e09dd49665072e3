"""A model folder from a stranger runs no code, wherever in model.pt2 the code hides."""

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point import inference
from entry_point.config.train_config import load_train_config
from entry_point.contract import exit_codes
from entry_point.contract.run_folder import RunFolder
from entry_point.training.results.model_files import save_program
from tests.entry_point.training.tasks.label_sources import PROBABILITIES
from tests.own_models import tiny_net

Files = dict[str, bytes]
PROGRAM = "models/model.json"
CPU = torch.device("cpu")


class Code:
    """A pickle of this creates the file `mark`."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return os.system, (f"touch {self.mark}",)


def python(mark: Path) -> str:
    return f"__import__('os').system('touch {mark}')"


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def edit(files: Files, name: str, change: Callable[[Any], object]) -> None:
    content = json.loads(files[name])
    change(content)
    files[name] = json.dumps(content).encode()


def every_dict(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for each in value for found in every_dict(each)]
    if not isinstance(value, dict):
        return []
    return [value, *(found for each in value.values() for found in every_dict(each))]


def in_sample_inputs(files: Files, mark: Path) -> None:
    files["data/sample_inputs/model.pt"] = saved(((Code(mark),), {}))


def in_weights(files: Files, mark: Path) -> None:
    def pickle_one(config: Any) -> None:
        weight = next(iter(config["config"].values()))
        weight["use_pickle"] = True
        files[f"data/weights/{weight['path_name']}"] = saved(Code(mark))

    edit(files, "data/weights/model_weights_config.json", pickle_one)


def in_a_constant(files: Files, mark: Path) -> None:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}
    files["data/constants/opaque_obj_0"] = pickle.dumps(Code(mark))
    edit(
        files,
        "data/constants/model_constants_config.json",
        lambda config: config["config"].update(x={**entry, "tensor_meta": None}),
    )


def in_a_size(files: Files, mark: Path) -> None:
    def replace(program: Any) -> None:
        for found in every_dict(program):
            if "expr_str" in found:
                found["expr_str"] = python(mark)

    edit(files, PROGRAM, replace)


def in_a_name(files: Files, mark: Path) -> None:
    name = json.dumps(f"images={python(mark)}").encode()
    files[PROGRAM] = files[PROGRAM].replace(b'"images"', name)


def in_a_guard(files: Files, mark: Path) -> None:
    edit(files, PROGRAM, lambda program: program.update(guards_code=[f"{python(mark)} == 0"]))


def in_an_operator(files: Files, mark: Path) -> None:
    def call_system(program: Any) -> None:
        node = program["graph_module"]["graph"]["nodes"][0]
        argument = {"name": "", "arg": {"as_string": f"touch {mark}"}, "kind": 1}
        node.update(target="torch.os.system", inputs=[argument])

    edit(files, PROGRAM, call_system)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that training wrote."""
    run = RunFolder(tmp_path_factory.mktemp("run"))
    config, _ = load_train_config(["data.image_size=32", "data.resize=32"])
    run.model.mkdir()
    save_program(run, tiny_net(num_classes=2), config.data, PROBABILITIES)
    (run.model / "classes.json").write_text('["a", "b"]')
    return run.model


def read(program: Path) -> Files:
    reader = torch._C.PyTorchFileReader(str(program))
    own = (".data/", "version", "byteorder")  # what the writer adds by itself
    names = [name for name in reader.get_all_records() if not name.startswith(own)]
    return {name: reader.get_record(name) for name in names}


def write(program: Path, files: Files) -> None:
    writer = torch._C.PyTorchFileWriter(str(program))
    for name, content in files.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()


@pytest.mark.parametrize(
    "hide",
    [
        in_sample_inputs,
        in_weights,
        in_a_constant,
        in_a_size,
        in_a_name,
        in_a_guard,
        in_an_operator,
    ],
)
def test_code_in_a_program_is_refused_and_not_run(
    hide: Callable[[Files, Path], None], model: Path, tmp_path: Path
) -> None:
    mark, program = tmp_path / "mark", tmp_path / "model.pt2"
    files = read(model / "model.pt2")
    write(program, files)
    assert inference.load_program(program, CPU, "") is not None  # rewriting alone is no reason
    hide(files, mark)
    write(program, files)
    with pytest.raises(inference.ModelError, match="copy the model again"):
        inference.load_program(program, CPU, "")
    assert not mark.exists()


def test_pickles_in_the_format_of_an_older_torch_are_refused_and_not_run(
    model: Path, tmp_path: Path
) -> None:
    mark, program = tmp_path / "mark", tmp_path / "model.pt2"
    content = read(model / "model.pt2")[PROGRAM]
    schema = json.loads(content)["schema_version"]
    with zipfile.ZipFile(program, "w") as archive:
        archive.writestr("version", f"{schema['major']}.{schema['minor']}")
        archive.writestr("serialized_exported_program.json", content)
        for part in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{part}.pt", saved(Code(mark)))
    with pytest.raises(inference.ModelError, match="copy the model again"):
        inference.load_program(program, CPU, "")
    assert not mark.exists()


def test_compiled_code_in_a_program_is_refused(model: Path, tmp_path: Path) -> None:
    files = read(model / "model.pt2")
    files["data/aotinductor/model/model.so"] = b"native code"
    write(tmp_path / "model.pt2", files)
    with pytest.raises(inference.ModelError, match=r"aotinductor/model/model.so' is not part"):
        inference.load_program(tmp_path / "model.pt2", CPU, "")


def test_predict_refuses_a_hostile_model_in_one_line(
    model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    mark, folder = tmp_path / "mark", tmp_path / "model"
    folder.mkdir()
    for name in ("inference.json", "classes.json"):
        (folder / name).write_bytes((model / name).read_bytes())
    files = read(model / "model.pt2")
    in_a_guard(files, mark)
    write(folder / "model.pt2", files)
    arguments = [
        f"input={photo_folder}",
        f"model_dir={folder}",
        f"output_dir={tmp_path / 'output'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "entry_point.predict", *arguments], capture_output=True, text=True
    )
    assert done.returncode == exit_codes.USAGE, done.stderr
    assert done.stderr.startswith(f"predict: {folder}/model.pt2: ")
    assert done.stderr.count("\n") == 1
    assert not mark.exists()
