"""Line pictures as SVG text, without a plotting library."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377")
LEFT, TOP, WIDTH, HEIGHT = 80, 60, 640, 300


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve; ``steps``: a value holds until the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


@dataclasses.dataclass(frozen=True)
class Scale:
    """Where the values of a picture lie on it."""

    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        return LEFT + WIDTH * (value - self.low) / ((self.high - self.low) or 1)

    def y(self, value: float) -> float:
        return TOP + HEIGHT * (1 - value / (self.top or 1))


def scale_of(lines: Sequence[Line]) -> Scale:
    """From the smallest to the largest x, and from 0 to the largest y."""
    points = [point for line in lines for point in line.points]
    if not points:
        return Scale(0, 1, 1)
    xs = [x for x, _ in points]
    return Scale(min(xs), max(xs), max(y for _, y in points))


def _curve(line: Line, scale: Scale, colour: str) -> str:
    places: list[str] = []
    for i, (x, y) in enumerate(line.points):
        if line.steps and i:
            places.append(f"{scale.x(x):.1f},{scale.y(line.points[i - 1][1]):.1f}")
        places.append(f"{scale.x(x):.1f},{scale.y(y):.1f}")
    return (
        f'<polyline data-name="{html.escape(line.name)}" points="{" ".join(places)}" '
        f'fill="none" stroke="{colour}" stroke-width="1.5"/>'
    )


def draw(
    title: str,
    lines: Sequence[Line],
    *,
    unit: str,
    x_marks: Sequence[tuple[float, str]],
) -> str:
    """A picture of the lines, with a legend; ``unit`` is that of the y values."""
    scale = scale_of(lines)
    parts = [f'<text x="8" y="17" font-size="13">{html.escape(title)}</text>']
    for i in range(6):
        value = scale.top * i / 5
        y = scale.y(value)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    parts.append(
        f'<text x="{LEFT - 6}" y="{TOP - 10}" text-anchor="end">{html.escape(unit)}</text>'
    )
    for value, label in x_marks:
        x = scale.x(value)
        parts.append(
            f'<path d="M{x:.1f} {TOP}v{HEIGHT}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
            f"{html.escape(label)}</text>"
        )
    for i, line in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        parts.append(_curve(line, scale, colour))
        x = LEFT + 215 * (i % 3)
        y = 26 + 14 * (i // 3)
        parts.append(
            f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{x + 14}" y="{y + 9}">{html.escape(line.name)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" '
        f'height="{TOP + HEIGHT + 30}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )
