"""Small plots as SVG, for notebooks and files: lines over time, a limit, marks.

They carry their own colours and stand on any page, light or dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 30, 34
#: About the width of a letter.
LETTER = 6.5
COLOURS = ("#2563c9", "#d2601a", "#13795b", "#8a3fb0")


@dataclass(frozen=True)
class Line:
    """A line through (x, y), as a stair where a value holds until the next."""

    name: str
    points: Sequence[tuple[float, float]]
    stair: bool = False


def over_time(
    title: str,
    unit: str,
    lines: Sequence[Line],
    *,
    limit: float | None = None,
    marks: Iterable[tuple[float, str]] = (),
) -> str:
    """The plot, as text of an `<svg>` element.

    >>> from plimsoll.plot import Line, over_time
    >>> svg = over_time("Memory", "GiB", [Line("allocated", [(0, 1), (1, 3)])], limit=4)
    >>> svg.startswith("<svg") and "allocated" in svg and "limit 4 GiB" in svg
    True
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    axes = _Axes(
        min(x for x, _ in points),
        max(x for x, _ in points),
        max([y for _, y in points] + ([limit] if limit is not None else [])) * 1.05,
    )
    parts = [*axes.frame(unit), *axes.marks(marks)]
    for number, line in enumerate(lines):
        parts.append(axes.line(line, COLOURS[number % len(COLOURS)]))
    if limit is not None:
        parts.append(axes.limit(limit, unit))
    parts += _legend(title, lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}" style="max-width:{WIDTH}px;width:100%;'
        'background:#fff;font:11px system-ui,sans-serif">' + "".join(parts) + "</svg>"
    )


class _Axes:
    def __init__(self, first: float, last: float, top: float) -> None:
        self.first, self.last = first, last if last > first else first + 1
        self.top = top if top > 0 else 1.0

    def x(self, value: float) -> float:
        return LEFT + (value - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)

    def frame(self, unit: str) -> list[str]:
        parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
        for value in _ticks(0, self.top, 5):
            at = self.y(value)
            parts.append(_straight(LEFT, at, WIDTH - RIGHT, at, "#e3e7ec"))
            parts.append(_text(LEFT - 6, at + 3.5, "end", f"{value:.6g}"))
        for value in _ticks(self.first, self.last, 7):
            parts.append(_text(self.x(value), HEIGHT - BOTTOM + 15, "middle", f"{value:.6g}"))
        parts.append(_text(WIDTH - RIGHT, HEIGHT - 4, "end", "seconds"))
        parts.append(_text(LEFT - 6, TOP - 8, "end", unit))
        return parts

    def line(self, line: Line, colour: str) -> str:
        corners: list[str] = []
        before: float | None = None
        for x, y in line.points:
            if line.stair and before is not None:
                corners.append(f"{self.x(x):.1f},{self.y(before):.1f}")
            corners.append(f"{self.x(x):.1f},{self.y(y):.1f}")
            before = y
        return (
            f'<polyline points="{" ".join(corners)}" fill="none" stroke="{colour}" '
            'stroke-width="1.5"/>'
        )

    def limit(self, value: float, unit: str) -> str:
        at = self.y(value)
        label = _text(WIDTH - RIGHT - 4, at - 4, "end", f"limit {value:.4g} {unit}", "#b3261e")
        return _straight(LEFT, at, WIDTH - RIGHT, at, "#b3261e", dashed=True) + label

    def marks(self, marks: Iterable[tuple[float, str]]) -> list[str]:
        parts, free_from = [], 0.0
        for x, label in sorted(marks):
            at = self.x(min(max(x, self.first), self.last))
            parts.append(_straight(at, TOP, at, HEIGHT - BOTTOM, "#97a3b0", dashed=True))
            width = LETTER * len(label)
            start = min(at + 3, WIDTH - RIGHT - width)
            # A label that would cover the one before it is left out; its line stays.
            if start >= free_from:
                parts.append(_text(start, HEIGHT - BOTTOM - 4, "start", label))
                free_from = start + width
        return parts


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers that divide a range into about this many steps."""
    rough = (high - low) / wanted
    power = 10 ** math.floor(math.log10(rough))
    step = next((f * power for f in (1, 2, 5) if f * power >= rough), 10 * power)
    first = math.ceil(low / step)
    return [n * step for n in range(first, first + 20) if n * step <= high]


def _legend(title: str, lines: Sequence[Line]) -> list[str]:
    parts = [_text(LEFT, 14, "start", title, "#1a2027", weight=600)]
    at: float = WIDTH - RIGHT
    for number, line in reversed(list(enumerate(lines))):
        parts.append(_text(at, 14, "end", line.name))
        at -= LETTER * len(line.name) + 8
        parts.append(_straight(at - 14, 10, at, 10, COLOURS[number % len(COLOURS)], width=3))
        at -= 28
    return parts


def _straight(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False, width: float = 1
) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"{dash}/>'
    )


def _text(
    x: float, y: float, anchor: str, text: str, colour: str = "#5d6875", weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-weight="{weight}">{html.escape(text)}</text>'
    )
