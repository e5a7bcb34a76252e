"""Every reader of what another process or person wrote, fed with damaged and made-up input.

    python tests/fuzz_readers.py [SECONDS] [SEED]

Runs in a process with a bound on memory. A reader may refuse with ValueError or OSError; any other exception, a crash, a hang or an answer that
takes more memory than its input warrants is a fault. Prints how many inputs each reader got.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import marshal
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter

import numpy as np
import torch

from unjam import SharedArray, SharedDict, SharedList, mapped
from unjam.doctor.check import event_log
from unjam.doctor.run import batch_file
from unjam.loader.failures import error_log as errors
from unjam.loader.failures.incident import Incident
from unjam.loader.transport.status_page import PAGE_BYTES, read_heartbeat
from unjam.shared import untrusted
from unjam.system import proc_files, process_table, python_stacks, stacks
from unjam.system.masking import masked, masked_words, without_secrets
from unjam.system.printable import json_text, printable

MEMORY = 3 << 30
# these have nobody to tell that their input is damaged
NEVER_RAISE = {"processes", "trials", "words", "error_logs"}
ODD = [
    None, True, -1, 0, 1 << 70, -(1 << 63), 1.5, float("nan"), float("inf"), "", "x" * 5000, "\x1b[31m\u202e\ud800", [], [[]], {}, {"a": 1}, [1] * 2000,
    "9" * 50, "..", "\0",
]  # fmt: skip


def mutate(data: bytes, dice: random.Random) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(found) + 1) if dice.random() < 0.6 else max(0, len(found) - dice.randrange(1, 80))
        kind = dice.randrange(6)
        if kind == 0 and found:
            found[at % len(found)] = dice.randrange(256)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at:at] = dice.randbytes(dice.choice((1, 4, 8, 200)))
        elif kind == 3:
            found[at : at + 8] = dice.choice((b"\xff" * 8, b"\0" * 8, (1 << 62).to_bytes(8, "little"), b"-1", b"1e999"))
        elif kind == 4:
            found[at:at] = found[at : at + 64]
        else:
            found[at:at] = dice.choice(
                (b"[" * 3000, b"{" * 50, b'{"a":' * 2000, b"9" * 6000, b"\n" * 5000, b"\x1b]8;;x\x07")
            )
    return bytes(found)


def mutate_value(value: object, dice: random.Random) -> object:
    """One part of a JSON value replaced by something odd."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        return (
            {**value, key: mutate_value(value[key], dice)}
            if dice.random() < 0.9
            else {k: v for k, v in value.items() if k != key}
        )
    if isinstance(value, list) and value and dice.random() < 0.7:
        at = dice.randrange(len(value))
        return [*value[:at], mutate_value(value[at], dice), *value[at + 1 :]]
    return dice.choice(ODD)


class Readers:
    """One method for each reader; the prepared inputs are those that our own writers make."""

    def __init__(self, folder: str, dice: random.Random) -> None:
        self.folder, self.dice, self.path = folder, dice, f"{folder}/file"
        self.shared: list[tuple[str, bytes]] = []
        rows = [{"a": i, "b": [str(i), (1.5, None)], "c": {"x": b"y"}} for i in range(30)]
        for name, made in {
            "numbers": lambda p: SharedList(range(40), path=p),
            "texts": lambda p: SharedList([f"name {i}" for i in range(40)], path=p),
            "rows": lambda p: SharedList([(i, i + 1) for i in range(40)], path=p),
            "records": lambda p: SharedList(rows, path=p),
            "values": lambda p: SharedList([1, "a", (2, [3])] * 9, path=p),
            "objects": lambda p: SharedList([object, {1, 2}, torch.ones(2)], path=p),
            "dict": lambda p: SharedDict({f"k{i}": i for i in range(30)}, path=p),
            "array": lambda p: SharedArray(np.arange(60).reshape(20, 3), path=p),
        }.items():
            made(f"{folder}/{name}")
            self.shared.append((name, self._bytes(f"{folder}/{name}")))
        np.save(f"{folder}/x.npy", np.arange(40, dtype="f4").reshape(10, 4))
        self.npy = self._bytes(f"{folder}/x.npy")
        header = {"x": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}, "__metadata__": {"a": "b"}}
        self.safe = header, np.zeros(12, "f4").tobytes()
        with contextlib.suppress(ImportError):
            import pyarrow as pa

            batch = pa.record_batch([pa.array([1, 2, 3]), pa.array(["a", "b", None])], names=["n", "t"])
            with pa.OSFile(f"{folder}/x.arrow", "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write(batch)
            self.arrow = self._bytes(f"{folder}/x.arrow")
        page = batch_file.BatchFile(f"{folder}/1.0.{os.getpid()}.page")
        for n in range(5):
            page.batch(n * 100, n * 100 + 50, n * 100 + 60, 4, 20, n)
        self.page = self._bytes(f"{folder}/1.0.{os.getpid()}.page")
        self.incident = json.loads(
            Incident(
                "sample",
                "it broke",
                sample=3,
                samples=(1, 2),
                traceback='File "a.py", line 3, in f\n',
                exception="ValueError",
                message="m 3",
            ).to_json()
        )
        self.frame = {"name": "f", "filename": "a.py", "line": 3, "locals": [{"name": "x", "repr": "1", "arg": True}]}
        self.threads = [{"os_thread_id": 3, "thread_name": "a", "thread_id": 4, "frames": [self.frame]}]

    @staticmethod
    def _bytes(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def _write(self, data: bytes, name: str = "file") -> str:
        path = f"{self.folder}/fuzzed.{name}" if "." not in name else f"{self.folder}/{name}"
        with contextlib.suppress(OSError):
            os.unlink(path)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def shared_files(self) -> None:
        name, data = self.dice.choice(self.shared)
        if self.dice.random() < 0.5:  # the head at the end is JSON: change it as JSON
            length = int.from_bytes(data[-16:-8], "little")
            head = json.loads(data[-16 - length : -16])
            text = json.dumps(mutate_value(head, self.dice), default=str).encode("utf-8", "replace")
            data = data[: -16 - length] + text + len(text).to_bytes(8, "little") + data[-8:]
        else:
            data = mutate(data, self.dice)
        path = self._write(data, name)
        kind = {"dict": SharedDict, "array": SharedArray}.get(name, SharedList)
        found = kind.open(path)
        if kind is SharedDict:
            for key in ("k1", "k29", "nobody", 3, b"x"):
                with contextlib.suppress(KeyError):
                    found[key]
            list(zip(range(100), found.items(), strict=False))
        elif getattr(found, "ndim", 1):  # an array of no dimensions has no rows
            for at, _ in zip(range(100), found, strict=False):
                found[at]
            found[-1:]

    def mapped_files(self) -> None:
        kind = self.dice.choice(("npy", "safetensors", "arrow", "shared"))
        if kind == "npy":
            data = mutate(self.npy, self.dice)
        elif kind == "safetensors":
            text = json.dumps(mutate_value(self.safe[0], self.dice), default=str).encode("utf-8", "replace")
            data = len(text).to_bytes(8, "little") + text + self.safe[1]
            data = mutate(data, self.dice) if self.dice.random() < 0.3 else data
        elif kind == "arrow":
            if not hasattr(self, "arrow"):
                return
            # pyarrow checks what it maps only coarsely, and its crashes are its own: cut, not changed inside
            data = self.arrow[: self.dice.randrange(len(self.arrow))]
        else:
            data = mutate(self.dice.choice(self.shared)[1], self.dice)
        rows = mapped(self._write(data, f"fuzzed.{kind}"))
        for at in range(min(len(rows), 20)):
            rows[at]

    def plain_values(self) -> None:
        data = marshal.dumps({"a": [1, -(1 << 90), 2.5, "ä", b"x", (None, True, 3j)], "b": frozenset({1, 2})}, 2)
        untrusted.loads(mutate(data, self.dice))

    def error_logs(self) -> None:
        lines = []
        for _ in range(20):
            text = json.dumps(mutate_value(self.incident, self.dice), default=str).encode("utf-8", "replace")
            lines.append(mutate(text, self.dice) if self.dice.random() < 0.3 else text)
        found = errors.read(self._write(b"\n".join(lines), "log"))
        errors.dumps(found, "1")
        errors.summary([])
        from rich.console import Console

        errors.show(found, errors.KINDS, Console(file=open(os.devnull, "w"), width=160))

    def worker_pages(self) -> None:
        path = self._write(mutate(self.page, self.dice), f"fuzzed.0.{os.getpid()}.page")
        *_, made = batch_file.read(path, 0)
        self._write(
            mutate(np.array([4, 1, 2, 3, 4, 3, 9, 9, 9], "<i8").tobytes(), self.dice),
            f"fuzzed.0.{os.getpid()}.page.samples",
        )
        batch_file.with_samples(made[:10], path)
        self._write(
            b"",
            f"{self.dice.choice(ODD)}.{self.dice.randrange(9)}.page".replace("/", "")
            .replace("\0", "")[:100]
            .encode("ascii", "replace")
            .decode(),
        )
        batch_file.of_seed(self.folder, 1)

    def heartbeats(self) -> None:
        data = mutate(bytes(PAGE_BYTES), self.dice)[:PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
        read_heartbeat(memoryview(data).cast("q")).seconds()

    def stacks(self) -> None:
        text = 'Current thread 0x00007f [a] (most recent call first):\n  File "a.py", line 3 in f\n  File "b.py", line ??? in g\n'
        stacks.main_stack(mutate(text.encode(), self.dice).decode("utf-8", "replace"))
        python_stacks.parse(json.dumps(mutate_value(self.threads, self.dice), default=str).encode("utf-8", "replace"))

    def processes(self) -> None:
        texts = {
            name: mutate(text, self.dice).decode("utf-8", "replace")
            for name, text in {
                "stat": b"12 (a) b) S 1 1 1 0 -1 4194560 3 0 0 0 7 8 0 0 20 0 1 0 99 1000 20 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0",
                "cmdline": b"python\0train.py\0--token\0abc\0",
                "sched": b"se.exec_start : 12.5\n",
                "schedstat": b"12 13 14",
                "status": b"voluntary_ctxt_switches:\t12\n",
                "environ": b"RANK=3\0X\0=",
                "uptime": b"99.5 88.1",
            }.items()
        }
        known = process_table.read_text
        process_table.read_text = proc_files.read_text = lambda path: texts.get(os.path.basename(path), "")
        try:
            one = process_table.entry(12)
            if one is not None:
                one.line, one.is_python
            (
                process_table.processor_time(12, 12),
                process_table.queueing_time(12, 12),
                process_table.voluntary_switches(12, 12),
                process_table.environment(12),
            )
            process_table.IdleClock().seconds(12, 12)
        finally:
            process_table.read_text = proc_files.read_text = known

    def trials(self) -> None:
        folder = tempfile.mkdtemp(dir=self.folder)
        with open(f"{folder}/{self.dice.choice(['12', 'x', '9' * 40, '-1'])}.rec", "wb") as file:
            file.write(mutate(b'{"k": "hello", "t": 1.5, "worker": 0}\n{"k": "got", "t": 2.0}\n', self.dice))
        for events in event_log.read(folder).values():
            assert all(isinstance(one, dict) for one in events)

    def words(self) -> None:
        text = mutate(
            b"https://u:p@h/x?sig=abc --token x password='y' \xe2\x80\xae key: Bearer abcdefgh", self.dice
        ).decode("utf-8", "surrogateescape")
        safe = printable(text)
        assert printable(safe) == safe
        assert not set(safe) & {"\x1b", "\u202e"}
        assert json.loads(json_text(text)) == text
        json_text(text).encode()
        masked(text), masked_words(text.split()), without_secrets([text, {"token": text}])


def main(seconds: float = 15.0, seed: int | None = None, rounds: int = 0) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (_now() + MEMORY,) * 2)
    seed = random.randrange(1 << 30) if seed is None else seed
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        readers = Readers(folder, dice)
        names = [name for name in vars(Readers) if not name.startswith("_")]
        until = time.monotonic() + seconds
        while time.monotonic() < until and (not rounds or sum(counts.values()) < rounds):
            name = dice.choice(names)
            state, began = dice.getstate(), time.monotonic()
            try:
                getattr(readers, name)()
            except (ValueError, OSError) as error:
                if name in NEVER_RAISE:
                    print(f"FAULT in {name}: {type(error).__name__}: {error}", flush=True)
                    raise
            except BaseException as error:
                print(
                    f"FAULT in {name}: {type(error).__name__}: {error} (seed {seed}, round {sum(counts.values())}, {hash(state)})",
                    flush=True,
                )
                raise
            assert time.monotonic() - began < 60, f"{name} took {time.monotonic() - began:.1f} s"
            counts[name] += 1
    print(json.dumps(dict(counts)))


def _now() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((float, int, int), sys.argv[1:], strict=False)))
