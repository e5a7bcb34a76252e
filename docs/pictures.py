"""Draws the README's pictures: real output of `unjam check`, and the speed relative to torch.

python docs/pictures.py          both
python docs/pictures.py speed    the chart only, from docs/pictures/speed.json
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent / "pictures"
PROGRAM = Path(__file__).parents[1] / "examples" / "broken" / "lock_held_by_thread.py"
ROW, LEFT, RIGHT, BAR = 26, 190, 60, 440


def draw_check() -> None:
    """Check one of the bundled programs and save the terminal output."""
    from rich.console import Console  # noqa: PLC0415 - each picture imports what it needs

    from unjam.doctor.check.command.check import check, open_target  # noqa: PLC0415 - as above
    from unjam.doctor.report.text import show  # noqa: PLC0415 - as above

    console = Console(record=True, width=108, file=io.StringIO(), force_terminal=True)
    console.print(f"$ unjam check {PROGRAM.relative_to(PROGRAM.parents[2])}")
    show(check(open_target(str(PROGRAM), []), str(PROGRAM), budget=40.0), console)
    text = console.export_svg(title="unjam check", clear=True)
    (HERE / "check.svg").write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def draw_speed() -> None:
    """A bar chart of torch's time divided by unjam's, as printed by `benchmarks/transport.py`."""
    found = json.loads((HERE / "speed.json").read_text())
    rows, longest = found["ratios"], max(found["ratios"].values())
    height = ROW * (len(rows) + 1) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + BAR + RIGHT} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="white"/><title>{found["title"]}</title>',
    ]
    one = LEFT + BAR / longest
    for at, (name, ratio) in enumerate(rows.items()):
        y = 10 + ROW * at
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end" fill="#222">{name}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{BAR * ratio / longest:.1f}" height="{ROW - 8}" fill="#2a6fb0"/>',
            f'<text x="{LEFT + BAR * ratio / longest + 6:.1f}" y="{y + 16}" fill="#222">{ratio:g}</text>',
        ]
    bottom = 10 + ROW * len(rows)
    lines += [
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="6" y2="{bottom}" stroke="#c22" stroke-dasharray="4 3"/>',
        f'<text x="{one:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#c22">torch = 1</text>',
        "</svg>",
    ]
    (HERE / "speed.svg").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    draw_speed()
    if "speed" not in sys.argv[1:]:
        draw_check()
