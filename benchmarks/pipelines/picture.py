"""The pictures of README and results, as SVG for light and dark pages: bars by contender.

`pipelines-*.svg` shows throughput and CPU time by pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import color
from benchmarks.pipelines.peers import PEERS
from benchmarks.pipelines.run_case import DALI_READER
from benchmarks.pipelines.table import Measurement, best_of_each

SHOWN = ("threads", DALI_READER, "spdl.io", *PEERS, "pillow")
"""From top to bottom, as far as they were measured."""
INK = {"light": ("#1f2328", "#59636e"), "dark": ("#f0f6fc", "#9198a1")}
"""Colors of text and of small text."""
WIDTH, ROW, BAR = 880, 36, 22
PANELS = (220, 560)
"""Left edges."""
LONGEST = 250
"""Width of the longest bar of a panel."""


@dataclass(frozen=True)
class Row:
    label: str
    texts: tuple[str, str]
    """Each panel's value as people read it."""
    values: tuple[float, float]
    """Lengths of the bars; 0: none."""
    bold: bool = False


def write_pictures(measured: Sequence[Measurement], folder: Path) -> None:
    """Write pipelines-light.svg and pipelines-dark.svg: each pipeline with its best number of
    workers."""
    best = {one.way: one for one in best_of_each(measured)}
    shown = [best[way] for way in SHOWN if way in best]
    rows = [
        Row(one.label, (f"{one.rate:.0f}", f"{one.cpu_ms:.1f}"), (one.rate, one.cpu_ms), not number)
        for number, one in enumerate(shown)
    ]
    titles = ("images per second (more is better)", "CPU ms per image (less is better)")
    write_bars(folder / "pipelines", titles, rows, "; ".join(map(_sentence, shown)))


def write_bars(stem: Path, titles: tuple[str, str], rows: Sequence[Row], spoken: str) -> None:
    """Write STEM-light.svg and STEM-dark.svg: two panels of bars, and the same `spoken`."""
    for theme in INK:
        stem.with_name(f"{stem.name}-{theme}.svg").write_text(_bars(titles, rows, spoken, theme))


def _bars(titles: tuple[str, str], rows: Sequence[Row], spoken: str, theme: str) -> str:
    ink, small = INK[theme]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {48 + ROW * len(rows)}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="15" fill="{ink}">',
        f"<title>{spoken}</title>",
    ]
    for number, row in enumerate(rows):
        weight = ' font-weight="bold"' if row.bold else ""
        y = 46 + ROW * number + BAR // 2
        parts.append(f'<text x="208" y="{y + 5}" text-anchor="end"{weight}>{row.label}</text>')
    for panel, (left, title) in enumerate(zip(PANELS, titles, strict=True)):
        parts.append(f'<text x="{left}" y="24" font-size="14" fill="{small}">{title}</text>')
        most = max(row.values[panel] for row in rows) or 1.0
        for number, row in enumerate(rows):
            y, width = 46 + ROW * number, LONGEST * row.values[panel] / most
            if width:
                parts.append(
                    f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" '
                    f'fill="{color(row.label)}"/>'
                )
            if row.texts[panel]:
                x = left + width + 7 * bool(width)
                parts.append(f'<text x="{x:.1f}" y="{y + 16}">{row.texts[panel]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _sentence(one: Measurement) -> str:
    return f"{one.label}: {one.rate:.0f} images per second, {one.cpu_ms:.1f} CPU ms per image"
