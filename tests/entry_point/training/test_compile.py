"""`trainer.compile` trains the same weights, under the same names."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from safetensors.torch import load_file
from torchvision.ops import StochasticDepth

from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder
from entry_point.training.results.log import column, training_records
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records
from tests.own_models import tiny_net

MIXED = ("optim.mixup_alpha=0.2", "optim.cutmix_alpha=1", "task.label_smoothing=0.1")


def run_compiled(root: Path, data: Path, overrides: Sequence[str], cache: Path) -> None:
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    compiling = [*overrides, "trainer.compile=default"]
    process = forked.start(root, data, compiling, inductor, _compile_for_any_processor)
    process.join(timeout=240)
    assert process.exitcode == ExitCode.FINISHED, (root / "log").read_text()
    assert list(cache.rglob("*.so"))


def _compile_for_any_processor() -> None:
    """Otherwise inductor first compiles a program for each vector unit that might be here."""
    torch._inductor.config.cpp.vec_isa_ok = False


def note_graphs() -> None:
    """Note the images that each compiled graph takes; the graphs then run uncompiled."""

    def note(graph: torch.fx.GraphModule, inputs: list[object]) -> Callable[..., object]:
        given = [each for each in inputs if not isinstance(each, torch.nn.Parameter)]
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in given]
        with (RunFolder.from_environment().root / "graphs").open("a") as file:
            file.write(f"{shapes}\n")
        return graph.forward

    pytest.MonkeyPatch().setattr(torch, "compile", partial(torch.compile, backend=note))


def test_each_image_size_has_a_graph_of_its_own_and_evaluation_has_none(
    tmp_path: Path, photo_folder: Path
) -> None:
    """By default, torch compiles the second size for all sizes, and 8 sizes at most."""
    sizes = range(16, 36, 2)
    by_epoch = [[epoch, size] for epoch, size in enumerate(sizes)]
    progressive = f"data.progressive={[*by_epoch, [10, 16]]}".replace(" ", "")
    overrides = ["trainer.compile=default", "trainer.epochs=11", progressive, "data.image_size=30"]
    assert forked.run(tmp_path, photo_folder, overrides, prepare=note_graphs) == 0
    graphs = (tmp_path / "graphs").read_text().splitlines()
    assert graphs == [f"[(16, 3, {size}, {size})]" for size in sizes]


@pytest.mark.parametrize(
    ("model", "overrides", "ranks"),
    [
        (f"{__name__}.skipping_net", [*MIXED, "optim.accumulate=2"], 1),
        ("tests.own_models.tiny_net_with_state", ["optim.ema_decay=0.9"], 1),
        ("tests.own_models.tiny_net", ["optim.clip_norm=1", "optim.accumulate=2"], 2),
    ],
    ids=["mixed, in pieces, with stochastic depth", "averaged", "two ranks"],
)
def test_a_compiled_graph_trains_as_the_model_does_and_is_compiled_once(
    model: str, overrides: Sequence[str], ranks: int, tmp_path: Path, photo_folder: Path
) -> None:
    compiled, plain = tmp_path / "compiled", tmp_path / "plain"
    overrides = [*overrides, f"model.name={model}"]
    half = ["trainer.compile=default", "trainer.epochs=1", "optim.schedule=step"]
    for epochs in ("1", "2"):  # the second resumes
        half[1] = f"trainer.epochs={epochs}"
        arguments = (compiled, photo_folder, [*overrides, *half], ranks)
        assert forked.run(*arguments, prepare=note_graphs) == 0, (compiled / "log").read_text()
    assert forked.run(plain, photo_folder, [*overrides, "optim.schedule=step"], ranks) == 0
    graphs = (compiled / "graphs").read_text().splitlines()
    assert len(graphs) == 2 * ranks and len(set(graphs)) == 1, graphs
    saved, expected = (
        torch.load(run / "checkpoints" / "step-000000006.pt", weights_only=True)["learner"]
        for run in (compiled, plain)
    )
    for part in ("model", "ema"):
        torch.testing.assert_close(saved.get(part), expected.get(part), rtol=1e-5, atol=1e-6)


def skipping_net(num_classes: int) -> torch.nn.Module:
    """Skips a layer for some images, drawn at random, as `drop_path_rate` has models do."""
    skipped = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, 1, 1), StochasticDepth(0.5, "row"))
    net = tiny_net(num_classes)
    assert isinstance(net, torch.nn.Sequential)
    return net.insert(1, skipped)


def smallest_net(num_classes: int) -> torch.nn.Module:
    """A layer of each kind: fewer programs to compile."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2, 1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, num_classes),
    )


def test_a_compiled_model_trains_resumes_and_exports_like_any_other(
    tmp_path: Path, photo_folder: Path
) -> None:
    # This learning rate does not depend on trainer.epochs.
    overrides = ["optim.schedule=step", "optim.ema_decay=0.5"]
    overrides.append("model.name=tests.entry_point.training.test_compile.smallest_net")
    compiled, plain, cache = (tmp_path / name for name in ("compiled", "plain", "inductor"))
    run_compiled(compiled, photo_folder, [*overrides, "trainer.epochs=1"], cache)
    run_compiled(compiled, photo_folder, [*overrides, "trainer.report=true"], cache)
    assert (compiled / "output" / "data" / "report.html").is_file()
    assert "resuming from" in (compiled / "log").read_text()
    assert forked.run(plain, photo_folder, overrides) == 0
    saved, expected = (
        torch.load(run / "checkpoints" / "step-000000006.pt", weights_only=True)["learner"]
        for run in (compiled, plain)
    )
    for part in ("model", "ema"):
        assert list(saved[part]) == list(expected[part])
        torch.testing.assert_close(saved[part], expected[part], rtol=1e-4, atol=1e-5)
    losses, same = (
        column(training_records(read_records(run)), "loss") for run in (compiled, plain)
    )
    assert losses == pytest.approx(same, rel=1e-4)

    model = smallest_net(8)
    model.load_state_dict(load_file(compiled / "model" / "model.safetensors"))
