"""What a run says of itself at its end."""

from __future__ import annotations

import sys
from pathlib import Path

from entry_point.contract.metrics_line import PERCENTILES
from entry_point.contract.run_folder import RunFolder
from entry_point.training.measure.milliseconds import shown_milliseconds
from entry_point.training.measure.totals import Totals


def summary_lines(
    totals: Totals, seconds: float, accuracy: float, best: float, run: RunFolder
) -> list[str]:
    """The closing lines: how good, how fast, and where everything is. `seconds` since the start."""
    traces = sorted(run.profile.glob("*.pt.trace.json.gz"))
    files = {
        "model": run.model / "model.pt",
        "metrics": run.output_data / "metrics.jsonl",
        "report": run.output_data / "report.html",
        "plot": run.output_data / "summary.png",
        **({"trace": traces[-1]} if traces else {}),
    }
    rows = {
        "validation accuracy": f"{100 * accuracy:.2f} % (best {100 * best:.2f} %)",
        **_speed_rows(totals),
        **{name: _shown(path) for name, path in files.items() if path.is_file()},
        "TensorBoard": f"{_tensorboard()} --logdir {_shown(run.tensorboard)}",
    }
    width = max(map(len, rows))
    # A finished run that is started again takes no step.
    before = "" if len(totals.steps) else " before, results written anew"
    return [
        f"Finished{before} in {duration(seconds)}",
        *(f"  {name:<{width}}  {value}" for name, value in rows.items()),
    ]


def duration(seconds: float) -> str:
    """`200` -> `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _speed_rows(totals: Totals) -> dict[str, str]:
    """How fast, and what the steps took; nothing of what was never measured."""
    if not totals.training_seconds:
        return {}
    times = [
        f"{part.replace('_', ' ')} " + " / ".join(map(shown_milliseconds, values))
        for part, values in totals.parts.items()
    ]
    name = "ms at p" + " / p".join(map(str, PERCENTILES))
    return {
        "training speed": f"{totals.images_per_s:.0f} images/s",
        "trained for": duration(totals.training_seconds),
        "waiting for data": f"{totals.data_wait_pct:.1f} % of training time",
        **({name: ", ".join(times)} if times else {}),
        "verdict": totals.verdict,
    }


def _tensorboard() -> str:
    """As it can be typed: a virtual environment's programs are on no path."""
    program = Path(sys.executable).with_name("tensorboard")
    return _shown(program) if program.is_file() else "tensorboard"


def _shown(path: Path) -> str:
    """Relative to where the person stands, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
