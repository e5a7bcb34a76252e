"""Every test ends by proving that nothing is left: no child, descriptor, thread, mapping or shared segment."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from multiprocessing import forkserver as mp_forkserver
from multiprocessing import resource_tracker

import psutil
import pytest

from unjam.loader.pool import fork_server


def _children() -> set[int]:
    mine = psutil.Process()
    server = fork_server.server_pid()
    found = set()
    for child in mine.children(recursive=True):
        try:
            line = " ".join(child.cmdline())
            if child.pid != server and "resource_tracker" not in line and "multiprocessing.forkserver" not in line:
                found.add(child.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def _descriptors() -> dict[int, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
            if "/pym-" not in target:  # multiprocessing's own heap keeps its memory for later
                found[int(fd)] = target
        except OSError:
            continue
    return found


def _mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:unjam" in line or "/unjam-" in line for line in maps)


def _tracker_lives() -> bool:
    """Whether multiprocessing's resource tracker runs; starts another one if not."""
    lives = resource_tracker._resource_tracker._check_alive()
    if not lives:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is gone
            resource_tracker.ensure_running()
    return lives


def _segments() -> set[str]:
    names = {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "psm_"))}
    return {name for name in names if not _belongs_to_others(name)}


def _belongs_to_others(segment: str) -> bool:
    """Whether a living process that is none of ours made it: the tests run in two processes at once."""
    pid = segment.split("_")[1]
    try:
        maker = psutil.Process(int(pid))
        return maker.is_running() and os.getpid() not in [maker.pid, *(parent.pid for parent in maker.parents())]
    except (psutil.Error, ValueError):
        return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """File names that are no text appear in logs; the report of a test has to be text to travel to the terminal's process."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def server():
    """What a process has one of runs before the first test: unjam's fork server, and multiprocessing's own helpers."""
    resource_tracker.ensure_running()
    mp_forkserver.ensure_running()
    # what is imported stays: each test's two collections need not walk it
    gc.collect()
    gc.freeze()
    yield fork_server.shared()
    fork_server.shut_down()


@pytest.fixture(autouse=True)
def nothing_left_behind(server):
    gc.collect()
    children, descriptors, segments = _children(), _descriptors(), _segments()
    threads, mappings = {t.ident for t in threading.enumerate()}, _mappings()
    yield
    assert _tracker_lives(), "multiprocessing's resource tracker ended"
    gc.collect()  # torch's own iterators take seconds to end when they are collected
    deadline = time.monotonic() + 5
    while True:
        gc.collect()
        left = []
        if extra := _children() - children:
            left.append(f"children {extra}")
        now = _descriptors()
        if len(now) > len(descriptors) + _server_changed(server):
            left.append(f"descriptors { {fd: to for fd, to in now.items() if fd not in descriptors} }")
        if extra := [t.name for t in threading.enumerate() if t.ident not in threads]:
            left.append(f"threads {extra}")
        if (extra := _mappings() - mappings) > 0:
            left.append(f"{extra} mappings")
        if extra := _segments() - segments:
            left.append(f"segments {extra}")
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert not left, "left behind: " + "; ".join(left)


def _server_changed(server) -> int:
    # a test that kills the server on purpose gets a new one, and with it a new socket
    return 1 if fork_server.server_pid() not in (server.pid, None) else 0


def pytest_collection_modifyitems(items):
    """The longest files first, so that one of two processes does not end minutes after the other."""
    longest = ["test_rules.py", "test_why.py", "test_run.py", "test_run_frameworks.py", "test_check.py", "test_tune.py"]
    items.sort(key=lambda item: longest.index(item.path.name) if item.path.name in longest else len(longest))
