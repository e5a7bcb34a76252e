"""Small broken programs: what plain torch prints, and what `unjam check` says about the same file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from runner import last_words, private_mounts

PROGRAMS = Path(__file__).parent / "broken"
LIMIT = 10  # seconds for plain torch
ROWS = [
    ("500 MB in memory, /dev/shm of 64 MB", "large_array", "64m"),
    ("a lambda in the dataset", "lambda_in_dataset", ""),
    ("OpenCV in workers", "opencv_in_workers", ""),
    ("files read by many workers", "files_by_path", ""),
    ("a lock around each read", "lock_around_reads", ""),
    ("an exception swallowed into None", "swallowed_exception", ""),
    ("an exception class created at run time", "strange_exception", ""),
    ("a lock that a thread holds", "lock_held_by_thread", ""),
    ("a file opened once", "shared_file", ""),
    ("a stream that is not divided between workers", "whole_stream", ""),
]


def surrounded(command: list[str], shm: str) -> list[str]:
    """The command with a small /dev/shm, if this machine allows creating one."""
    prefix = private_mounts() if shm else None
    if prefix is None:
        return command
    return [*prefix, "sh", "-c", f'mount -t tmpfs -o size={shm} tmpfs /dev/shm && exec "$@"', "sh", *command]


def plain(program: Path, shm: str) -> str:
    """The last line that torch prints."""
    command = surrounded([sys.executable, "-W", "ignore", str(program)], shm)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        said = looked_at(process.pid)
        os.killpg(process.pid, 9)
        process.communicate(timeout=10)
        return f"(nothing; still waiting after {LIMIT} s)\nunjam why: {said}"
    return out.strip().splitlines()[-1] if process.returncode == 0 else last_words(err, process.returncode)


def looked_at(pid: int) -> str:
    """What `unjam why` says about the stuck process."""
    done = subprocess.run(
        [sys.executable, "-m", "unjam", "why", str(pid), "--json", "-"], capture_output=True, text=True, check=False
    )
    finding = next(iter(json.loads(done.stdout)["findings"]), None) if done.stdout else None
    return f"{finding['code']} {finding['title']} ({finding['confidence']})" if finding else done.stderr.strip()


def unmodified() -> None:
    """Run an unmodified script on unjam's loader."""
    script = Path(__file__).parent / "unmodified.py"
    command = ["unjam", "run", "--on-error", "skip", os.path.relpath(script)]
    print("$ " + " ".join(command), flush=True)
    subprocess.run([sys.executable, "-m", *command], check=False)


def tuned() -> None:
    """Find out how many workers a training needs."""
    command = ["unjam", "tune", "--step-ms", "20", "--budget", "25", os.path.relpath(Path(__file__).parent / "slow.py")]
    print("$ " + " ".join(command), flush=True)
    subprocess.run([sys.executable, "-m", *command], check=False, stderr=subprocess.DEVNULL)


def examined(program: Path, shm: str) -> str:
    """The findings of `unjam check`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, "-m", "unjam", "check", "--json", out.name, str(program)]
        subprocess.run(surrounded(command, shm), capture_output=True, timeout=150, check=False)
        said = json.loads(out.read() or b'{"findings": []}')
    lines = [
        f"[{'red' if f['severity'] == 'error' else 'yellow' if f['severity'] == 'warning' else 'cyan'}]{f['severity']}"
        f"\\[{f['code']}][/] {escape(f['title'])} [green]({f['confidence']})[/green]\nhelp: {escape(f['help'])}"
        for f in said["findings"]
    ]
    return "\n".join(lines) or "[green]nothing found[/green]"


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(
        f"[dim]{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}[/dim]"
    )
    table = Table(show_lines=True)
    table.add_column("program", ratio=2, overflow="fold", max_width=28)
    table.add_column("plain torch prints", ratio=3, overflow="fold")
    table.add_column("unjam check says", ratio=6, overflow="fold")
    with console.status("") as status:
        for title, name, shm in ROWS:
            program = PROGRAMS / f"{name}.py"
            status.update(f"{title}: plain torch")
            before = plain(program, shm)
            status.update(f"{title}: unjam check")
            table.add_row(f"{title}\n[dim]{name}.py[/dim]", escape(before), examined(program, shm))
    console.print(table)
    unmodified()
    tuned()
    console.print("The programs are in examples/broken; try one: .venv/bin/unjam check examples/broken/NAME.py")


if __name__ == "__main__":
    main()
