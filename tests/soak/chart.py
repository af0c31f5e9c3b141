"""Two small charts of a soak run as one SVG: objects and bytes over time. Lines and numbers, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tests.soak.run import Sample

WIDTH: Final = 720
HEIGHT: Final = 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 30, 30
_GREY = "#808080"  # readable on a light and on a dark page


def chart(samples: Sequence[Sample]) -> str:
    """The document."""
    body = _one(samples, "objects", lambda each: each.objects, 0, "#3b7dd8")
    body += _one(samples, "stored kB", lambda each: each.bytes / 1000, HEIGHT, "#2a9d63")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{2 * HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {2 * HEIGHT}" font-family="sans-serif" font-size="12" fill="{_GREY}">\n'
        f"<title>Objects and bytes of a queue during a soak run</title>\n{body}</svg>\n"
    )


def _one(samples: Sequence[Sample], title: str, of: Callable[[Sample], float], top: int, color: str) -> str:
    longest_s = max(samples[-1].at_s, 1.0)
    most = _rounded_up(max(of(each) for each in samples))

    def x(at_s: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * at_s / longest_s

    def y(value: float) -> float:
        return top + HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / most

    lines = [f'<text x="{_LEFT}" y="{top + 18}" font-weight="bold">{title}</text>\n']
    for part in range(5):
        value = most * part / 4
        at = y(value)
        lines.append(
            f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{WIDTH - _RIGHT}" y2="{at:.1f}" stroke="{_GREY}" '
            f'stroke-opacity="0.3"/>\n<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:,.4g}</text>\n'
        )
    for part in range(7):
        at_s = longest_s * part / 6
        lines.append(
            f'<text x="{x(at_s):.1f}" y="{top + HEIGHT - 12}" text-anchor="middle">{at_s / 60:.3g} min</text>\n'
        )
    points = " ".join(f"{x(each.at_s):.1f},{y(of(each)):.1f}" for each in samples)
    lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>\n')
    return "".join(lines)


def _rounded_up(value: float) -> float:
    """To 1, 2, 4 or 8 times a power of ten, so that quarters of it are readable."""
    power = 10.0 ** (len(str(int(max(value, 1)))) - 1)
    return next(step * power for step in (1, 2, 4, 8, 10, 20) if step * power >= value)
