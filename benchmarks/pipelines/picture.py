"""The README's picture, as SVG for light and dark pages: throughput and CPU time by pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import color
from benchmarks.pipelines.run_case import DALI_READER
from benchmarks.pipelines.table import Measurement, best_of_each

SHOWN = ("threads", DALI_READER, "spdl.io", "pillow")
"""From top to bottom, as far as they were measured."""
INK = {"light": ("#1f2328", "#59636e"), "dark": ("#f0f6fc", "#9198a1")}
"""Colors of text and of small text."""
WIDTH, ROW, BAR = 880, 36, 22
PANELS: tuple[tuple[int, str, Callable[[Measurement], float], str], ...] = (
    (220, "images per second (more is better)", lambda one: one.rate, ".0f"),
    (560, "CPU ms per image (less is better)", lambda one: one.cpu_ms, ".1f"),
)
"""Left edge, title, value and its format."""
LONGEST = 250
"""Width of the longest bar of a panel."""


def write_pictures(measured: Sequence[Measurement], folder: Path) -> None:
    """Write pipelines-light.svg and pipelines-dark.svg."""
    for theme in INK:
        (folder / f"pipelines-{theme}.svg").write_text(picture(measured, theme))


def picture(measured: Sequence[Measurement], theme: str) -> str:
    """SVG with one row per pipeline, each with its best number of workers."""
    best = {one.way: one for one in best_of_each(measured)}
    rows = [best[way] for way in SHOWN if way in best]
    ink, small = INK[theme]
    height = 48 + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="15" fill="{ink}">',
        f"<title>{'; '.join(map(_sentence, rows))}</title>",
    ]
    for number, one in enumerate(rows):
        weight = ' font-weight="bold"' if number == 0 else ""
        y = 46 + ROW * number + BAR // 2
        parts.append(f'<text x="208" y="{y + 5}" text-anchor="end"{weight}>{one.label}</text>')
    for left, title, value, form in PANELS:
        parts.append(f'<text x="{left}" y="24" font-size="14" fill="{small}">{title}</text>')
        most = max(map(value, rows))
        for number, one in enumerate(rows):
            y, width = 46 + ROW * number, LONGEST * value(one) / most
            parts.append(
                f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" '
                f'fill="{color(one.label)}"/>'
                f'<text x="{left + width + 7:.1f}" y="{y + 16}">{value(one):{form}}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _sentence(one: Measurement) -> str:
    return f"{one.label}: {one.rate:.0f} images per second, {one.cpu_ms:.1f} CPU ms per image"
