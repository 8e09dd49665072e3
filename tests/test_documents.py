"""README and docs: links, commands and the pages of results."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.test_makefile import TARGETS, only_values

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")
COMMAND = re.compile(r"(?:`|^)make ([a-z][a-z-]*)([^`\n]*)", re.MULTILINE)


@cache
def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    return listed.stdout.splitlines()


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_relative_link_resolves(document: Path) -> None:
    links = [a or b for a, b in LINK.findall(document.read_text())]
    files = [link.split("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    assert not [file for file in files if not (document.parent / file).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_source_file_that_a_document_names_exists(document: Path) -> None:
    """By its whole path, or by the end of it; `project/` holds the reader's own."""
    files = [f"/{path}" for path in tracked_files()]
    named = re.findall(r"`(?!project/)([\w/.]+\.(?:py|cpp|h))`", document.read_text())
    assert not [file for file in named if not any(each.endswith(f"/{file}") for each in files)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_make_command_in_the_documents_exists(document: Path) -> None:
    for target, rest in COMMAND.findall(document.read_text()):
        assert target in TARGETS
        for only in re.findall(r"\bONLY=([a-z0-9-]+)", rest):
            assert only in only_values(target)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_the_arguments_of_a_make_command_are_words_to_a_shell(document: Path) -> None:
    given = re.findall(r'^make [^"\n]*ARGS="([^"]*)"', document.read_text(), re.MULTILINE)
    script = "".join(f"program {arguments}\n" for arguments in given)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_readme_links_every_document_for_users_and_maintainers() -> None:
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()
    index = (ROOT / "docs" / "index.md").read_text()
    others = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md"]
    assert others and not [file for file in others if f"({file})" not in index]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "results").glob("*.md")), ids=name)
def test_every_page_of_results_names_the_command_that_writes_it(page: Path) -> None:
    command = r"`make (figures ONLY=[a-z-]+|bench ARGS=\"publish=true[^\"]*\")`"
    assert re.search(command, page.read_text())


def test_every_plot_is_shown_on_a_page() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS)
    plots = [path.name for path in (ROOT / "docs" / "results" / "plots").iterdir()]
    assert plots and not [plot for plot in plots if f"plots/{plot}" not in text]


@pytest.mark.parametrize(
    ("row", "page", "names"),
    [
        (
            "random 256x256 crop",
            "op-crop",
            ("this operator, side index", "torchvision", "torchcodec", "Pillow"),
        ),
        (
            "RandomResizedCrop to 224 pixels, the same",
            "op-resized",
            (
                "this operator, side index",
                "torchvision v2 on tensors",
                "torchcodec, v2 on tensors",
                "Pillow",
            ),
        ),
        (
            "RandomResizedCrop to 224 pixels, photos of 12",
            "op-resized",
            (
                "RandomResizedCrop 224 of 3000x4000",
                "this operator, side index",
                "torchvision v2 on tensors",
                "torchcodec, v2 on tensors",
                "Pillow",
            ),
        ),
    ],
)
def test_the_readme_gives_the_figures_of_the_pages_of_the_operator(
    row: str, page: str, names: tuple[str, ...]
) -> None:
    text = (ROOT / "docs" / "results" / f"{page}.md").read_text()
    if len(names) == 5:  # the first one is the table's header
        text = text[text.index(f"| {names[0]} |") :]
    readme = (ROOT / "README.md").read_text().splitlines()
    (line,) = [each for each in readme if each.startswith(f"| {row}")]
    shown = [float(cell.removesuffix(" ms")) for cell in line.strip("| ").split(" | ")[1:]]
    measured = [float(text.split(f"| {name} | ")[1].split(" |")[0]) for name in names[-4:]]
    assert shown == pytest.approx(measured, rel=0.02)


def test_the_readme_gives_the_figures_of_the_page_of_pipelines() -> None:
    page = (ROOT / "docs" / "results" / "pipelines.md").read_text()
    table = page[page.index("| engine | best workers |") :].partition("\n\n")[0]
    ratios = dict(re.findall(r"^\| (threads[^|]*) \| \d+ \| ([\d.]+)x ", table, re.M))
    text = (ROOT / "README.md").read_text()
    said = re.search(r"on plain files `threads` is ([\d.]+) times.*\n.*packed ([\d.]+) times", text)
    assert said is not None
    measured = [ratios["threads, plain files"], ratios["threads"]]
    assert list(said.groups()) == [f"{float(ratio):.1f}" for ratio in measured]
