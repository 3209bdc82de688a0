"""What the trainer reports can be drawn: a curve of finite numbers over true updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("reports",))

WIDTH, HEIGHT, EDGE = 480, 240, 24


def judge(evidence: Evidence) -> Found:
    """Draws the training and validation loss that were reported; the picture is an artifact."""
    run = evidence.run("reports")
    if run.refused:
        return Found(status="fail", says=f"there is nothing to draw: {run.refused}")
    curves = {
        "training loss": [(u + 1, v) for u, name, v in run.candidate["logged"] if name == "loss"],
        "validation loss": [(u + 1, v) for u, name, v in run.candidate["evaluated"] if name == "loss"],
    }
    drawn = {name: points for name, points in curves.items() if len(points) > 1}
    details = {name: len(points) for name, points in curves.items()}
    if not all(math.isfinite(value) for points in drawn.values() for _, value in points):
        return Found(status="fail", says="a reported loss is not finite", details=details)
    if len(drawn) < len(curves):
        missing = sorted(curves.keys() - drawn.keys())
        return Found(status="fail", says=f"too few reports to draw a curve: {', '.join(missing)}", details=details)
    evidence.draw("curves", picture(drawn))
    return Found(status="pass", says="training and validation loss are drawn from its reports", details=details)


def picture(curves: dict[str, list[tuple[int, float]]]) -> str:
    """An SVG of curves over updates."""
    points = [point for curve in curves.values() for point in curve]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)

    def place(x: float, y: float) -> str:
        across = EDGE + (x - left) / max(1, right - left) * (WIDTH - 2 * EDGE)
        down = HEIGHT - EDGE - (y - low) / max(1e-12, high - low) * (HEIGHT - 2 * EDGE)
        return f"{across:.1f},{down:.1f}"

    lines = [
        _line(name, [place(*point) for point in curve], index) for index, (name, curve) in enumerate(curves.items())
    ]
    text = f'<text x="{EDGE}" y="{HEIGHT - 6}">updates {left} to {right}, loss {low:.4g} to {high:.4g}</text>'
    view = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="10">'
    return "\n".join([view, *lines, text, "</svg>", ""])


def _line(name: str, places: Sequence[str], index: int) -> str:
    colour = ("#1b6ca8", "#c0392b")[index % 2]
    label = f'<text x="{WIDTH - 120}" y="{EDGE + 12 * index}" fill="{colour}">{name}</text>'
    return f'<polyline fill="none" stroke="{colour}" points="{" ".join(places)}"/>{label}'
