"""`trainer.compile` trains the same weights, under the same names."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from safetensors.torch import load_file
from torchvision.ops import StochasticDepth

from entry_point.config.train_config import load_train_config
from entry_point.job.devices import Devices
from entry_point.job.run_folder import RunFolder
from entry_point.training.learner import Learner
from entry_point.training.results.log import column, training_records
from tests.entry_point.training import forked
from tests.entry_point.training.tasks.label_sources import CPU, classes, task_of
from tests.entry_point.training.training_jobs import read_records
from tests.own_models import tiny_net

HERE = f"model.name={__name__}."


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default, torch compiles the second size for all sizes, and 8 sizes at most."""
    graphs: list[object] = []

    def note(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=note))
    limit = torch._dynamo.config.recompile_limit
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", limit)
    sizes = range(16, 36, 2)
    progressive = str([[epoch, size] for epoch, size in enumerate(sizes)]).replace(" ", "")
    settings = ["model.name=tests.own_models.tiny_net", f"data.progressive={progressive}"]
    config, _ = load_train_config(["trainer.compile=default", *settings])
    learner = Learner(config, Devices(CPU, None), task_of(classes(4)), 10, Path())
    for number, size in enumerate([*sizes, sizes[0]], 1):
        learner.loss(torch.zeros(4, 3, size, size), torch.arange(4), 0)
        learner.exported(torch.zeros(4, 3, size, size))
        assert len(graphs) == min(number, len(sizes))


@pytest.mark.parametrize(
    ("overrides", "ranks", "epochs"),
    [
        (
            [f"{HERE}skipping_net", "optim.mixup_alpha=0.2", "optim.ema_decay=0.9"],
            *(1, (1, 2)),  # the second start resumes
        ),
        (["model.name=tests.own_models.tiny_net", "optim.clip_norm=1"], 2, (1,)),
    ],
    ids=["mixed, averaged, with stochastic depth", "two ranks"],
)
def test_a_compiled_graph_trains_resumes_and_exports_as_the_model_does(
    overrides: list[str], ranks: int, epochs: Sequence[int], tmp_path: Path, photo_folder: Path
) -> None:
    compiled, plain = tmp_path / "compiled", tmp_path / "plain"
    overrides = [*overrides, "optim.accumulate=2", "optim.schedule=step"]
    for count in epochs:
        settings = [*overrides, "trainer.compile=default", f"trainer.epochs={count}"]
        code = forked.run(compiled, photo_folder, settings, ranks, prepare=note_graphs)
        assert code == 0, (compiled / "log").read_text()
    last = f"trainer.epochs={epochs[-1]}"
    assert forked.run(plain, photo_folder, [*overrides, last], ranks) == 0
    graphs = (compiled / "graphs").read_text().splitlines()
    assert len(graphs) == len(epochs) * ranks and len(set(graphs)) == 1, graphs
    newest = f"checkpoints/step-{3 * epochs[-1]:09d}.pt"
    saved, expected = (
        torch.load(run / newest, weights_only=True)["learner"] for run in (compiled, plain)
    )
    for part in ("model", "ema"):
        torch.testing.assert_close(saved.get(part), expected.get(part), rtol=1e-4, atol=1e-5)
    losses, same = (
        column(training_records(read_records(run)), "loss") for run in (compiled, plain)
    )
    assert losses == pytest.approx(same, rel=1e-4)
    exported, own = (load_file(run / "model/model.safetensors") for run in (compiled, plain))
    torch.testing.assert_close(exported, own, rtol=1e-4, atol=1e-5)


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


def _compile_for_any_processor() -> None:
    """Otherwise inductor first compiles a program for each vector unit that might be here."""
    torch._inductor.config.cpp.vec_isa_ok = False


def test_torchs_compiler_compiles_a_job(tmp_path: Path, photo_folder: Path) -> None:
    cache = tmp_path / "inductor"
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    settings = [f"{HERE}smallest_net", "trainer.epochs=1", "trainer.compile=default"]
    process = forked.start(tmp_path, photo_folder, settings, inductor, _compile_for_any_processor)
    process.join(timeout=240)
    assert process.exitcode == 0, (tmp_path / "log").read_text()
    assert list(cache.rglob("*.so"))
