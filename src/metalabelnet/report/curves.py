"""Learning curves as SVG: lines are drawn, words and numbers are text, and colors are the page's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metalabelnet.report.markup import Html, join, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.report.source import Phase

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 34
COLORS = 8
ALIKE = 1e-9  # values that differ by less, or by less of their size, differ by rounding


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line: (epoch, value) where there is one, and half the width of the band around it."""

    name: str
    points: Sequence[tuple[int, float]]
    spread: Sequence[float] = ()


def series(name: str, lines: Sequence[dict[str, object]], key: str, spread: str | None = None) -> Series:
    """The values of a key by epoch, those that are numbers."""
    found = [line for line in lines if _finite(line.get(key))]
    widths = [line.get(spread) for line in found] if spread is not None else []
    return Series(
        name=name,
        points=[(int(str(line["epoch"])), float(str(line[key]))) for line in found],
        spread=[float(str(width)) for width in widths] if widths and all(map(_finite, widths)) else (),
    )


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def chart(
    title: str,
    drawn: Sequence[Series],
    *,
    unit: str = "",
    phases: Sequence[Phase] = (),
    selected: int | None = None,
    from_zero: bool = False,
) -> Html:
    """A figure with its legend, and in words what the marks mean."""
    drawn = [one for one in drawn if one.points]
    epochs = [epoch for one in drawn for epoch, _ in one.points]
    epochs += [edge for phase in phases for edge in (phase.first, phase.last)]
    plot = _Plot(drawn, min(epochs), max(epochs), from_zero=from_zero)
    parts = [plot.phase(k, phase) for k, phase in enumerate(phases)]
    parts += [plot.grid(unit)]
    if selected is not None:
        x = _s(plot.x(selected))
        parts.append(tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="selected"))
    parts += [plot.line(one, k % COLORS) for k, one in enumerate(drawn)]
    picture = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{title}, by epoch")
    legend = tag("p", *(_key(one.name, k % COLORS) for k, one in enumerate(drawn)), class_="legend")
    said = [f"{phase.name}: {_epochs(phase.first, phase.last)}" for phase in phases]
    said += [] if selected is None else [f"dashed: epoch {selected}, which was selected"]
    return tag("figure", tag("h4", title), legend, picture, tag("figcaption", "; ".join(said)))


class _Plot:
    """From values to places."""

    def __init__(self, drawn: Sequence[Series], first: int, last: int, *, from_zero: bool) -> None:
        self.first, self.last = first, last
        lows, highs = [0.0] if from_zero else [], []
        for one in drawn:
            widths = one.spread or [0.0] * len(one.points)
            lows += [value - width for (_, value), width in zip(one.points, widths, strict=True)]
            highs += [value + width for (_, value), width in zip(one.points, widths, strict=True)]
        low, high = max(0.0, min(lows)) if from_zero else min(lows), max(highs)
        self.ticks = ticks(low, high)
        self.low, self.high = min(low, self.ticks[0]), max(high, self.ticks[-1])

    def x(self, epoch: float) -> float:
        """A lone epoch stands in the middle."""
        share = (epoch - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def phase(self, k: int, phase: Phase) -> Html:
        left = self.x(phase.first - 0.5) if phase.first > self.first else LEFT
        right = self.x(phase.last + 0.5) if phase.last < self.last else WIDTH - RIGHT
        width, height = _s(right - left), HEIGHT - TOP - BOTTOM
        field = tag("rect", x=_s(left), y=TOP, width=width, height=height, class_=f"phase{k % 2}")
        if right - left < 6 * len(phase.name):
            return field
        return join(field, tag("text", phase.name, x=_s((left + right) / 2), y=TOP - 7, class_="middle"))

    def grid(self, unit: str) -> Html:
        parts = []
        digits = max(0, -math.floor(math.log10(self.ticks[1] - self.ticks[0]) + 1e-9))
        for value in self.ticks:
            y = _s(self.y(value))
            parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", f"{value:.{digits}f}", x=LEFT - 5, y=y, dy="0.35em", class_="end"))
        if unit:
            parts.append(tag("text", unit, x=2, y=TOP - 7))
        epochs = sorted({round(tick) for tick in ticks(self.first, self.last) if self._has(tick)} or {self.first})
        parts += [
            tag("text", str(epoch), x=_s(self.x(epoch)), y=HEIGHT - BOTTOM + 14, class_="middle") for epoch in epochs
        ]
        parts.append(tag("text", "epoch", x=_s((LEFT + WIDTH - RIGHT) / 2), y=HEIGHT - 4, class_="middle"))
        return join(*parts)

    def _has(self, tick: float) -> bool:
        return tick == round(tick) and self.first <= tick <= self.last

    def line(self, one: Series, k: int) -> Html:
        places = [(self.x(epoch), self.y(value)) for epoch, value in one.points]
        parts = []
        if one.spread:
            widths = list(zip(one.points, one.spread, strict=True))
            edge = [(self.x(e), self.y(v + w)) for (e, v), w in widths]
            edge += [(self.x(e), self.y(v - w)) for (e, v), w in reversed(widths)]
            parts.append(tag("polygon", points=_path(edge), class_=f"band c{k}"))
        if len(places) == 1:
            parts.append(tag("circle", cx=_s(places[0][0]), cy=_s(places[0][1]), r=3.5, class_=f"dot c{k}"))
        else:
            parts.append(tag("polyline", points=_path(places), class_=f"line c{k}"))
        return join(*parts)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that span the values, two at least and about so many."""
    if high - low <= ALIKE * max(1.0, abs(high)):
        pad = abs(low) / 10 if abs(low) > ALIKE else 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _key(name: str, k: int) -> Html:
    swatch = tag(
        "svg", tag("line", x1=0, x2=22, y1=5, y2=5, class_=f"line c{k}"), viewBox="0 0 22 10", aria_hidden="true"
    )
    return tag("span", swatch, " ", tag("bdi", name))


def _epochs(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_s(x)},{_s(y)}" for x, y in places)


def _s(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
