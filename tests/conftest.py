"""Every test ends by proving that nothing is left: no child, descriptor, thread, mapping or shared segment."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.util
import os
import signal
import threading
import types
import warnings
from multiprocessing import forkserver as mp_forkserver
from multiprocessing import resource_tracker
from pathlib import Path

import hypothesis
import pytest
import torch

import rule_programs
import warm_start
from support import can_isolate, wait_until
from unjam.loader.pool import fork_server


def _children() -> set[int]:
    """Every process below this one but the helpers that a process has one of."""
    helpers = {fork_server.server_pid(), warm_start.interpreter_pid()}
    found = set()
    for pid in _below(os.getpid()):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if line and pid not in helpers and "resource_tracker" not in line and "multiprocessing.forkserver" not in line:
            found.add(pid)
    return found


def _below(pid: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except OSError:
        return []  # it has ended
    return found + [deeper for child in found for deeper in _below(child)]


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
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "psm_"))}


# the same examples each time, unless more of them are asked for
hypothesis.settings.register_profile("same", derandomize=True)
if "UNJAM_SCHEDULES" not in os.environ:
    hypothesis.settings.load_profile("same")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """File names that are no text appear in logs; the report of a test has to be text to travel to the terminal's process."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_make_parametrize_id(val):
    """Cases are named by what they are, not by numbers."""
    if isinstance(val, types.FunctionType) and val.__name__ == "<lambda>":
        used = [*val.__code__.co_names, *(one for one in val.__code__.co_consts if isinstance(one, (int, float, str)))]
        return " ".join(map(str, used))[:60] or None
    if isinstance(val, (dict, list, tuple, set, frozenset, bytes, torch.dtype)):
        return repr(val)[:60]
    return None


def pytest_collection_modifyitems(items):
    """Files whose tests mostly wait come first: tests that compute fill the time, and nobody waits alone at the end."""
    waiting = (
        "test_why.py",
        "test_why_rules.py",
        "test_check.py",
        "test_check_watching.py",
        "test_rules.py",
        "test_run.py",
    )
    items.sort(key=lambda item: item.path.name not in waiting)


def pytest_report_header():
    return f"rules whose programs are run: {rule_programs.chosen()[1]}"


@pytest.fixture(scope="session")
def server():
    """What a process has one of runs before the first test: unjam's fork server, and multiprocessing's own helpers."""
    # a shell that runs the tests in the background has Ctrl-C ignored, and children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warm_start.warm_interpreter()
    multiprocessing.util.spawnv_passfds = warm_start.spawnv_passfds
    resource_tracker.ensure_running()
    mp_forkserver.ensure_running()
    # what is imported stays: each test's two collections need not walk it
    gc.collect()
    gc.freeze()
    yield fork_server.shared()
    fork_server.shut_down()


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """After a test: no child, descriptor, thread, mapping or segment that was not there before it."""
    if request.node.get_closest_marker("static") is not None:
        yield
        return
    server = request.getfixturevalue("server")
    children, descriptors, segments = _children(), _descriptors(), _segments()
    threads, mappings = {t.ident for t in threading.enumerate()}, _mappings()
    yield
    assert _tracker_lives(), "multiprocessing's resource tracker ended"
    kept = None
    left = []

    def is_gone() -> bool:
        nonlocal kept
        if left:
            gc.collect()  # what a cycle holds is no leak
        left.clear()
        if extra := _children() - children:
            left.append(f"children {extra}")
        now = _descriptors()
        if len(now) > len(descriptors) + _server_changed(server):
            left.append(f"descriptors { {fd: to for fd, to in now.items() if fd not in descriptors} }")
        if extra := [t.name for t in threading.enumerate() if t.ident not in threads]:
            left.append(f"threads {extra}")
        if (extra := _mappings() - mappings) > 0:
            left.append(f"{extra} mappings")
        # those of other processes, such as a second run of the tests, come and go
        kept = _segments() - segments if kept is None else kept & _segments()
        if kept:
            left.append(f"segments {kept}")
        return not left

    with contextlib.suppress(AssertionError):
        wait_until(is_gone, 30, every=0.05)
    assert not left, "left behind: " + "; ".join(left)


def _server_changed(server) -> int:
    # a test that kills the server on purpose gets a new one, and with it a new socket
    return 1 if fork_server.server_pid() not in (server.pid, None) else 0


@pytest.fixture
def isolation():
    """For tests of a whole program that `unjam check` watches."""
    if not can_isolate():
        pytest.skip("needs the right to mount: root, or a user namespace")


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of two nodes with two processors each, all of it in this process."""
    from fake_cluster import FakeCluster, FakeNode, FakeRay
    from unjam.loader.cluster import node_agent, ray_cluster

    fake = FakeRay(FakeNode("alpha"), FakeNode("beta"))
    monkeypatch.setattr(ray_cluster, "connect", lambda settings: fake)
    monkeypatch.setattr(ray_cluster, "RayCluster", FakeCluster)
    monkeypatch.setattr(node_agent, "_settle", lambda state: None)  # it would change this very process
    yield fake
    for node in fake.machines:
        for agent in node.agents:
            agent.close(2)
        node.agents.clear()  # pytest keeps the cluster until after the check for what is left
