"""The pictures of README and results, as SVG for light and dark pages: bars by contender.

`pipelines-*.svg` shows throughput and CPU time by pipeline, and throughput with large photographs.
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
LEFT, GAP = 220, 60
"""Left edge of the first panel; space for the figure right of the longest bar."""


@dataclass(frozen=True)
class Row:
    label: str
    texts: tuple[str, ...]
    """Each panel's value as people read it."""
    values: tuple[float, ...]
    """Lengths of the bars; 0: none."""
    bold: bool = False


def write_pictures(
    measured: Sequence[Measurement], phones: Sequence[Measurement], folder: Path
) -> None:
    """Write pipelines-light.svg and pipelines-dark.svg: each pipeline with its best number of
    workers, and those of `phones` on photographs of 12 megapixels."""
    best = {one.way: one for one in best_of_each(measured)}
    shown = [best[way] for way in SHOWN if way in best]
    large = {one.way: one.rate for one in phones}
    rows = []
    for number, one in enumerate(shown):
        rate = large.get(one.way, 0.0)
        texts = (f"{one.rate:.0f}", f"{one.cpu_ms:.1f}", f"{rate:.0f}" * bool(rate))
        rows.append(Row(one.label, texts, (one.rate, one.cpu_ms, rate), not number))
    titles = (
        "images/s (more is better)",
        "CPU ms/image (less is better)",
        "images/s, 12 megapixels",
    )
    spoken = [
        f"{one.label}: {one.rate:.0f} images per second, {one.cpu_ms:.1f} CPU ms per image"
        for one in shown
    ]
    spoken += [f"{one.label}, 12 megapixels: {one.rate:.0f} images per second" for one in phones]
    for theme in INK:
        picture = _bars(titles, rows, "; ".join(spoken), theme)
        (folder / f"pipelines-{theme}.svg").write_text(picture)


def _bars(titles: tuple[str, ...], rows: Sequence[Row], spoken: str, theme: str) -> str:
    """Returns a panel of bars per title, and the same `spoken`."""
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
    panel_width = (WIDTH - LEFT) // len(titles)
    for panel, title in enumerate(titles):
        left = LEFT + panel * panel_width
        parts.append(f'<text x="{left}" y="24" font-size="14" fill="{small}">{title}</text>')
        most = max(row.values[panel] for row in rows) or 1.0
        for number, row in enumerate(rows):
            y, width = 46 + ROW * number, (panel_width - GAP) * row.values[panel] / most
            if width:
                parts.append(
                    f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" '
                    f'fill="{color(row.label)}"/>'
                )
            if row.texts[panel]:
                x = left + width + 7 * bool(width)
                parts.append(f'<text x="{x:.1f}" y="{y + 16}">{row.texts[panel]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
