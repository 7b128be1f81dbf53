"""Line charts by epoch as inline SVG; text stays text and colors come from the style sheet of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metalabelnet.report.markup import Html, join, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.report.finished_run import Phase

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 34
COLORS = 8
EQUAL_TOLERANCE = 1e-9  # absolute and relative; smaller differences are rounding errors


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of (epoch, value) points with the half-width of the band around each."""

    name: str
    points: Sequence[tuple[int, float]]
    spread: Sequence[float] = ()


def series(name: str, lines: Sequence[dict[str, object]], key: str, spread: str | None = None) -> Series:
    """The finite values of a metric by epoch."""
    finite = [line for line in lines if _finite(line.get(key))]
    widths = [line.get(spread) for line in finite] if spread is not None else []
    return Series(
        name=name,
        points=[(int(str(line["epoch"])), float(str(line[key]))) for line in finite],
        spread=[float(str(width)) for width in widths] if widths and all(map(_finite, widths)) else (),
    )


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def chart(
    title: str,
    lines: Sequence[Series],
    *,
    unit: str = "",
    phases: Sequence[Phase] = (),
    selected: int | None = None,
    from_zero: bool = False,
) -> Html:
    """A figure with title, legend and a caption that explains phases and the selected epoch."""
    lines = [line for line in lines if line.points]
    epochs = [epoch for line in lines for epoch, _ in line.points]
    epochs += [edge for phase in phases for edge in (phase.first, phase.last)]
    plot = _Plot(lines, min(epochs), max(epochs), from_zero=from_zero)
    parts = [plot.phase(k, phase) for k, phase in enumerate(phases)]
    parts += [plot.grid(unit)]
    if selected is not None:
        x = _format(plot.x(selected))
        parts.append(tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="selected"))
    parts += [plot.line(line, k % COLORS) for k, line in enumerate(lines)]
    picture = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{title}, by epoch")
    legend = tag("p", *(_legend_entry(line.name, k % COLORS) for k, line in enumerate(lines)), class_="legend")
    captions = [f"{phase.name}: {_epochs(phase.first, phase.last)}" for phase in phases]
    captions += [] if selected is None else [f"dashed: selected epoch {selected}"]
    return tag("figure", tag("h4", title), legend, picture, tag("figcaption", "; ".join(captions)))


class _Plot:
    """Maps epochs and values to coordinates and draws the elements."""

    def __init__(self, lines: Sequence[Series], first: int, last: int, *, from_zero: bool) -> None:
        self.first, self.last = first, last
        lows, highs = [0.0] if from_zero else [], []
        for line in lines:
            widths = line.spread or [0.0] * len(line.points)
            lows += [value - width for (_, value), width in zip(line.points, widths, strict=True)]
            highs += [value + width for (_, value), width in zip(line.points, widths, strict=True)]
        low, high = max(0.0, min(lows)) if from_zero else min(lows), max(highs)
        self.ticks = ticks(low, high)
        self.low, self.high = min(low, self.ticks[0]), max(high, self.ticks[-1])

    def x(self, epoch: float) -> float:
        """The x coordinate of an epoch; a single epoch is centered."""
        share = (epoch - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def phase(self, k: int, phase: Phase) -> Html:
        left = self.x(phase.first - 0.5) if phase.first > self.first else LEFT
        right = self.x(phase.last + 0.5) if phase.last < self.last else WIDTH - RIGHT
        width, height = _format(right - left), HEIGHT - TOP - BOTTOM
        background = tag("rect", x=_format(left), y=TOP, width=width, height=height, class_=f"phase{k % 2}")
        if right - left < 6 * len(phase.name):
            return background
        return join(background, tag("text", phase.name, x=_format((left + right) / 2), y=TOP - 7, class_="middle"))

    def grid(self, unit: str) -> Html:
        parts = []
        digits = max(0, -math.floor(math.log10(self.ticks[1] - self.ticks[0]) + 1e-9))
        for value in self.ticks:
            y = _format(self.y(value))
            parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", f"{value:.{digits}f}", x=LEFT - 5, y=y, dy="0.35em", class_="end"))
        if unit:
            parts.append(tag("text", unit, x=2, y=TOP - 7))
        epochs = sorted({round(tick) for tick in ticks(self.first, self.last) if self._is_epoch(tick)} or {self.first})
        parts += [
            tag("text", str(epoch), x=_format(self.x(epoch)), y=HEIGHT - BOTTOM + 14, class_="middle")
            for epoch in epochs
        ]
        parts.append(tag("text", "epoch", x=_format((LEFT + WIDTH - RIGHT) / 2), y=HEIGHT - 4, class_="middle"))
        return join(*parts)

    def _is_epoch(self, tick: float) -> bool:
        return tick == round(tick) and self.first <= tick <= self.last

    def line(self, line: Series, k: int) -> Html:
        points = [(self.x(epoch), self.y(value)) for epoch, value in line.points]
        parts = []
        if line.spread:
            widths = list(zip(line.points, line.spread, strict=True))
            edge = [(self.x(e), self.y(v + w)) for (e, v), w in widths]
            edge += [(self.x(e), self.y(v - w)) for (e, v), w in reversed(widths)]
            parts.append(tag("polygon", points=_path(edge), class_=f"band c{k}"))
        if len(points) == 1:
            parts.append(tag("circle", cx=_format(points[0][0]), cy=_format(points[0][1]), r=3.5, class_=f"dot c{k}"))
        else:
            parts.append(tag("polyline", points=_path(points), class_=f"line c{k}"))
        return join(*parts)


def ticks(low: float, high: float, target_count: int = 5) -> list[float]:
    """Round numbers that span the values: at least two, about `target_count`."""
    if high - low <= EQUAL_TOLERANCE * max(1.0, abs(high)):
        pad = abs(low) / 10 if abs(low) > EQUAL_TOLERANCE else 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / target_count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _legend_entry(name: str, k: int) -> Html:
    swatch = tag(
        "svg", tag("line", x1=0, x2=22, y1=5, y2=5, class_=f"line c{k}"), viewBox="0 0 22 10", aria_hidden="true"
    )
    return tag("span", swatch, " ", tag("bdi", name))


def _epochs(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_format(x)},{_format(y)}" for x, y in points)


def _format(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
