"""Writes bar charts and line charts as small SVG files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 270, 90, 26, 44
OURS, OTHER, RANGE = "#2f6f4f", "#9aa5b1", "#1f2933"
LINES = ("#2f6f4f", "#c05621", "#3366cc", "#805ad5", "#718096")
STYLE = "<style>text{font:13px sans-serif;fill:#1f2933}.title{font-size:15px;font-weight:600}</style>"


@dataclass(frozen=True)
class Bar:
    name: str
    low: float
    middle: float
    high: float
    ours: bool
    label: str
    noisy: bool = False


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Return a chart with one bar for each median, and a line from the lowest to the highest round.

    A noisy bar is pale: its length cannot be compared.
    """
    top = max((bar.high for bar in bars), default=0.0) or 1.0
    height = TOP + ROW * len(bars) + 12

    def x(value: float) -> float:
        return LEFT + value / top * (WIDTH - LEFT - RIGHT)

    note = " (pale: the machine was not quiet)" if any(bar.noisy for bar in bars) else ""
    parts = [_text(12, 24, title + note, css="title")]
    for number, bar in enumerate(bars):
        y = TOP + ROW * number
        parts += [
            _text(LEFT - 8, y + 14, bar.name, anchor="end"),
            _rectangle(LEFT, y, x(bar.middle) - LEFT, 18, OURS if bar.ours else OTHER, 0.3 if bar.noisy else 1),
            f'<line x1="{x(bar.low):.1f}" x2="{x(bar.high):.1f}" y1="{y + 9}" y2="{y + 9}" stroke="{RANGE}"/>',
            _text(x(bar.high) + 8, y + 14, bar.label),
        ]
    return _document(height, parts)


def line_chart(title: str, lines: Mapping[str, Sequence[float]], y_label: str) -> str:
    """Return a chart of values at equal steps, such as the tenths of a drain."""
    height, bottom = 300, 258
    top = max((value for values in lines.values() for value in values), default=0.0) or 1.0
    parts = [_text(12, 24, title, css="title"), _text(60, 44, y_label)]
    for share in (0, 0.5, 1):
        y = bottom - share * (bottom - 56)
        parts += [
            f'<line x1="60" x2="{WIDTH - 190}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d5dae0"/>',
            _text(54, y + 4, f"{top * share:,.0f}", anchor="end"),
        ]
    for number, (name, values) in enumerate(lines.items()):
        colour = LINES[number % len(LINES)]
        step = (WIDTH - 250) / max(1, len(values) - 1)
        points = " ".join(
            f"{60 + step * place:.1f},{bottom - value / top * (bottom - 56):.1f}" for place, value in enumerate(values)
        )
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
            _rectangle(WIDTH - 178, 58 + 22 * number, 12, 12, colour),
            _text(WIDTH - 160, 69 + 22 * number, name),
        ]
    parts.append(_text(60, bottom + 24, "each tenth of the jobs, in the order in which they ran"))
    return _document(height, parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", css: str = "") -> str:
    attributes = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attributes}>{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> str:  # noqa: PLR0917 - a shape
    pale = f' fill-opacity="{opacity}"' if opacity < 1 else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"{pale}/>'


def _document(height: int, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">',
            STYLE,
            _rectangle(0, 0, WIDTH, height, "#ffffff"),
            *parts,
            "</svg>\n",
        ]
    )
