"""Replay the commands of README, docs and examples in a fresh copy of this tree.

`python -m tests.printed_commands [WORD]` replays those that the documents print, or those with
WORD; each must succeed. tests/test_recipes.py runs those of docs/adapt.md. Training is tiny; a job
on AWS is a dry run; what needs a container engine or hours is `make -n`, which knows targets and
variables; what installs packages is not replayed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from torchvision.models import ResNet50_Weights, resnet50

from tests.boxed_shapes import write_boxes
from tests.forked_python import forking_environment
from tests.photographs import write_photo_folder
from tests.recorded.frozen import HERE
from tests.recorded.layouts import (
    CLASSES,
    class_of,
    image,
    split_of,
    write,
    write_layout,
    write_table,
)
from tests.recorded.observed import MINIMAL

ADAPT = "docs/adapt.md"
APART = (
    *("docs/launch.md", "docs/maintaining.md", "docs/samples.md", "docs/settings.md"),
    "project/README.md",
)
"""Documents whose commands need nothing that those of others have made."""
PROGRAMS = (
    r"(?:make|sudo|docker|podman|python3?|\.venv/bin/[\w.]+|pip|uv|aws|brew|xcode-select|apt-get"
    r"|dpkg|cp|tar|mlflow|wandb|torchrun|nvidia-ctk)"
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(rf"^(?:    )?({PROGRAMS} .+)$", re.MULTILINE)
SPAN = re.compile(rf"`({PROGRAMS} [^`\n]+)`")
NOT_REPLAYED = {
    r"sudo|apt-get|dpkg|brew|xcode-select|(\.venv/bin/)?pip|uv": "installs packages",
    r"make weights": "needs a network; tests/entry_point/training/test_pretrained.py has a server",
    r"docker|podman|nvidia-ctk|python3 -m launch.docker": "needs a container engine",
    r"aws|torchrun|tar|python -m compileall": "is a form, or a program of others",
    r"python -m tests.settings_page": "a test compares what it prints",
    r"mlflow|wandb": "needs this package",
    r".*tests\.(recorded|printed_commands)": "compares two commits, or is this program",
    r"make dataset .*source=OLD": "needs a dataset of version 1; test_converting.py has one",
    r"from (sagemaker|launch\.notebook)|from custom_op .*\n\npixels": "needs an SDK, or is a part",
}
"""Beginnings of commands, and why they are not replayed."""
DRY = re.compile(
    r"make (?=(setup|image|push|docker-\w+|upload|test|lint|format|figures|bench|sagemaker"
    r"|sagemaker-deploy)( |$)|(?!local-train)[\w-]+$)"
)
"""Of a target without arguments, documents only give the name."""
TRAINING = re.compile(r"make (local-train|sweep|show-batch)")
TINY = (
    *("data.image_size=32", "pipeline.num_workers=1", "optim.warmup_epochs=0", "optim.lr=1e-3"),
    *("trainer.batch_size=8", "trainer.epochs=1", "trainer.device=cpu", "trainer.report=false"),
)
DEMO = ("+data.kwargs.train_images=20", "+data.kwargs.val_images=10")
MEANT = {
    'local-train ARGS="data.root=DIR"': 'local-train ARGS="data.root=DIR name=dir"',
    "data.root=DIR data.format=folder": "data.root=DIR data.format=folder model_dir=runs/dir/model",
    'evaluate ARGS="data.root=DIR"': 'evaluate ARGS="data.root=DIR model_dir=runs/dir/model"',
    "output_dir=DIR": "output_dir=runs/answers",
    "model_dir=DIR": "model_dir=runs/latest/model",
    "lraspp_mobilenet_v3_large data.root=DIR": "lraspp_mobilenet_v3_large data.root=MASKS",
    "output=data/photos part=": "output=data/parts part=",
    "runs/a runs/b": "runs",
    "data.root=DIR task=segmentation": "data.root=MASKS task=segmentation",
    '"split=test"': '"split=test data.root=TESTED model_dir=runs/dir/model"',
    "output=s3://...": "output=s3://my-bucket/packed",
    "s3://...": "s3://my-bucket/folder",
    " ...": "",
}
"""What stands for something of the user's. Other such words are names of folders in the copy."""


class Command(NamedTuple):
    document: str
    text: str
    """Of a shell, or Python."""

    @property
    def name(self) -> str:
        first = self.text.partition("\n")[0] if self.is_python else " ".join(self.text.split())
        return f"command: {self.document}: {first}"

    @property
    def is_python(self) -> bool:
        return bool(re.match(r"from |import ", self.text))

    @property
    def exit_code(self) -> int:
        """What it must end with: `timeout` ends a server."""
        return 124 if tiny(self.text).startswith("timeout ") else 0

    @property
    def python(self) -> str:
        """The interpreter of the environment that it runs with. What README prints starts as a
        reader starts it; a server is ended by a signal to the program itself."""
        is_real = self.document == "README.md" or tiny(self.text).startswith("timeout ")
        return "python3" if is_real else "forks"

    @property
    def skipped(self) -> str | None:
        """Why it is not replayed."""
        found = (why for start, why in NOT_REPLAYED.items() if re.match(start, self.text))
        return next(found, None)


def printed(tree: Path) -> Iterator[Command]:
    """The commands in the documents of a tree but adapt.md, each once."""
    documents = [tree / "README.md", *sorted((tree / "docs").rglob("*.md"))]
    documents.remove(tree / ADAPT)
    documents += [tree / name for name in ("CONTRIBUTING.md", "project/README.md")]
    seen = set()
    for document in [*documents, *sorted((tree / "examples").glob("*.*"))]:
        for text in _commands(document.read_text(encoding="utf-8")):
            if text not in seen:
                seen.add(text)
                yield Command(str(document.relative_to(tree)), text)


def _commands(document: str) -> Iterator[str]:
    end = 0
    for block in BLOCK.finditer(document):
        yield from _outside(document[end : block.start()])
        end = block.end()
        language, text = block.groups()
        if language == "python":
            yield text
        elif language in ("", "sh"):
            joined = re.sub(r"\\\n\s*", "", text)
            lines = joined.splitlines() if language == "sh" else LINE.findall(joined)
            yield from (re.sub(r"\s+# .*", "", line).strip() for line in lines)
    yield from _outside(document[end:])


def _outside(text: str) -> Iterator[str]:
    """Commands in running text, and in lines that are indented as code."""
    found = [*LINE.finditer(text), *SPAN.finditer(text)]
    for match in sorted(found, key=lambda match: match.start()):
        if match[0].startswith(("    ", "`", "python -m examples")):
            yield match[1].replace(r"\|", "|").strip()


def tiny(command: str) -> str:
    """The command in a form that takes seconds, and no account."""
    for word, meant in MEANT.items():
        command = command.replace(word, meant)
    if DRY.match(command):
        return DRY.sub("make -n ", command, count=1)
    if "make sagemaker-" in command:
        return f"DRY_RUN=1 {_with(command, [f'{key}={value}' for key, value in MINIMAL.items()])}"
    if command.startswith("make serve"):
        return f"timeout 30 {_with(command, ['serve.port=8471'])}"
    if TRAINING.match(command):
        resize = () if "data.image_size=" in command else ("data.resize=36",)
        demo = () if re.search(r"\bdata(\.root)?=", command) else DEMO
        return _with(command, [*TINY, *resize, *demo])
    return f"DRY_RUN=1 {command}" if "make setup-aws" in command else command


def _with(command: str, overrides: list[str]) -> str:
    """The command with those overrides in ARGS whose keys it does not have."""
    more = " ".join(each for each in overrides if f"{each.partition('=')[0]}=" not in command)
    if command.endswith('"'):
        return f'{command[:-1]} {more}"'
    return (
        re.sub(r"ARGS=(\S+)$", rf'ARGS="\1 {more}"', command)
        if "ARGS=" in command
        else (f'{command} ARGS="{more}"')
    )


def prepare(copy: Path) -> None:
    """Give a copy of the tree datasets with the names that documents use."""
    write_photo_folder(copy / "photos", train=4, val=2)
    for name in ("DIR", "PATH", "FOLDER"):
        write_layout("folders", copy / name)
    shutil.copytree(copy / "DIR" / "val", copy / "TESTED" / "test")
    for number in range(30):  # project.sources.by_file_name
        write(copy / "FOLDER" / f"{CLASSES[number % 3]}_{number}.jpg", image(number))
    write_layout("mask_folders", copy / "MASKS")
    table = write_table(copy / "table/labels.csv", {"label": class_of, "split": split_of}, "table/")
    table.rename(copy / "labels.csv")
    write_boxes(copy / "BOXES", train=8, val=8)
    shutil.copy(copy / "examples" / "boxes.py", copy / "project")
    fetched = copy / "pretrained" / Path(ResNet50_Weights.DEFAULT.url).name
    fetched.parent.mkdir()
    torch.save(resnet50().state_dict(), fetched)


def replayed(commands: list[Command], copy: Path) -> Iterator[tuple[Command, int | None, str]]:
    """Of each command its exit code and the end of its output, in order, in one copy."""
    for command in commands:
        if command.skipped:
            yield command, None, command.skipped
        else:
            yield command, *_run(command, copy)


def _run(command: Command, copy: Path) -> tuple[int, str]:
    """Returns its exit code and the end of its output."""
    environment = {
        "PATH": f"{copy}/.venv/bin:{os.environ['PATH']}",
        "PHOTOS": str(copy / "photos"),
        "BOXES": str(copy / "BOXES"),
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHON": "true",  # make asks it to prepare the environment
    }
    python, log = copy / ".venv" / "bin" / "python", copy.with_suffix(".log")
    python.unlink()
    python.symlink_to(command.python)
    shell = ["bash", "-euo", "pipefail", "-c", tiny(command.text)]
    with log.open("w") as file:  # what forks writes to files
        done = subprocess.run(
            [str(python), "-c", command.text] if command.is_python else shell,
            cwd=copy,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
    output = log.read_text(errors="backslashreplace")
    # make says so, and succeeds, for a target that it lists but that has no rule any more.
    code = 2 if "Nothing to be done" in output else done.returncode
    return code, "\n".join(output.splitlines()[-8:])


def replay_all(commands: list[Command], tree: Path) -> Iterator[tuple[Command, int | None, str]]:
    """The documents apart, and the rest: at the same time, each in a copy of the tree."""
    chains: dict[str, list[Command]] = {"rest": [], "apart": []}
    for command in commands:
        chains["apart" if command.document in APART else "rest"].append(command)
    chains = {name: chain for name, chain in chains.items() if chain}
    copies = [tree.with_name(f"{tree.name}-{name}") for name in chains]
    with ExitStack() as environments, ThreadPoolExecutor(len(chains)) as threads:
        for copy in copies:
            shutil.copytree(tree, copy, symlinks=True)
            prepare(copy)
            environments.enter_context(forking_environment(copy))
            (copy / ".venv-launch").symlink_to(".venv")
        ends = threads.map(lambda *each: list(replayed(*each)), chains.values(), copies)
        for results in ends:
            yield from results


def copied(copy: Path) -> Path:
    """What a clone of this tree would hold."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=HERE, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (HERE / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HERE / name, copy / name)
    return copy


def main(word: str = "") -> int:
    """Returns how many failed; 1 if no command was chosen."""
    chosen = [command for command in printed(HERE) if word in command.name]
    left, failed = Counter[str](), 0
    with tempfile.TemporaryDirectory() as temporary:
        for command, code, output in replay_all(chosen, copied(Path(temporary, "tree"))):
            if code is None:
                left[output] += 1
                continue
            is_right = code == command.exit_code
            failed += not is_right
            end = "" if is_right else f": exit code {code}\n{output}"
            say(f"{'ok' if is_right else 'FAILED'}: {command.name}{end}")
    for reason, count in left.items():
        say(f"{count} not replayed: {reason}")
    say(f"{len(chosen) - left.total()} replayed, {failed} failed")
    return failed if chosen else 1


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
