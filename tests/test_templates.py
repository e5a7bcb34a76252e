"""Templates: what a dataset is made of exists once, workers are forked from there, and nobody notices."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import unjam
from support import python, wait_until
from unjam.loader.pool import fork_server, templates
from unjam.loader.ship import immortal, large_containers
from unjam.loader.worker import template

N = large_containers.MIN_ITEMS + 50


class Plain:
    """Large plain containers, and where its worker came from."""

    def __init__(self, items):
        self.items = items
        self.label = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {
            "item": self.items[index],
            "label": self.label,
            "parent": os.getppid(),
            "id": id(self.items),
            "type": type(self.items).__name__,
            "pid": os.getpid(),
        }


def load(loader):
    return list(loader)


def as_it_is(sample):
    return sample


def loader_of(dataset, **more):
    return unjam.DataLoader(dataset, **{"batch_size": None, "num_workers": 2, "collate_fn": as_it_is, **more})


def parents(batches):
    return {one["parent"] for one in batches}


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def dicts():
    return [{"path": f"{n}.jpg", "box": [n, n + 1], "tags": {"a", str(n)}, "more": ({"k": n}, "x")} for n in range(N)]


# -- what is there once ----------------------------------------------------------------------------------------------------


def test_workers_share_one_copy_of_plain_containers():
    loader = loader_of(Plain(dicts()))
    found = load(loader)
    assert [one["item"]["path"] for one in found] == [f"{n}.jpg" for n in range(8)]
    assert found[3]["item"] == loader.dataset.items[3]
    assert {one["type"] for one in found} == {"list"}, "it is a real list"
    assert len({one["pid"] for one in found}) == 2
    assert len({one["id"] for one in found}) == 1, "in both workers at the address that it has in the template"
    (template,) = parents(found)
    assert template != fork_server.server_pid()
    assert loader.statistics().rebuilt == ""


def test_the_template_is_reused_across_epochs_and_small_changes():
    loader = loader_of(Plain(dicts()))
    first = parents(load(loader))
    loader.dataset.label = 7
    found = load(loader)
    assert {one["label"] for one in found} == {7}
    assert parents(found) == first


CHANGES = {
    "an item": lambda items: items.__setitem__(1, {**items[1]}),
    "a value": lambda items: items[1].update(path="other"),
    "a value of another type": lambda items: items[1].update(path=True) or items[1].update(path=1),
    "a nested list": lambda items: items[1]["box"].append(9),
    "an item of a nested list": lambda items: items[1]["box"].__setitem__(0, 1.0),
    "a nested set": lambda items: items[1]["tags"].add("new"),
    "a dict in a tuple": lambda items: items[1]["more"][0].update(k=-1),
    "a key": lambda items: items[1].pop("box"),
    "the order": lambda items: items.reverse(),
    "the length": lambda items: items.append(items[0]),
    "an equal text": lambda items: items[1].update(path=str(1) + ".jpg"),
    "one more holder": lambda items: items.__setitem__(2, items[1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_program_are_seen_by_workers(change):
    loader = loader_of(Plain(dicts()))
    first = parents(load(loader))
    CHANGES[change](loader.dataset.items)
    found = load(loader)
    assert [one["item"] for one in found] == loader.dataset.items[:8]
    assert [type(one["item"].get("path")) for one in found] == [
        type(one.get("path")) for one in loader.dataset.items[:8]
    ]
    assert parents(found) != first


def test_unchanged_containers_are_recognised():
    items = dicts()
    one, _ = large_containers.snapshot(items)
    gc.collect()
    assert one.unchanged()
    items[5]["path"], items[6]["path"] = items[6]["path"], items[5]["path"]
    assert not one.unchanged()


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_every_kind_of_container_is_shared(kind):
    names = [f"name {n}" for n in range(N)]
    items = dict(enumerate(names)) if kind is dict else kind(names)
    found = load(loader_of(Plain(items)))
    assert [one["item"] for one in found] == names[:8]
    assert {one["type"] for one in found} == {kind.__name__}
    assert len({one["id"] for one in found}) == 1


class Tied(Plain):
    def __init__(self, items):
        super().__init__(items)
        self.first = items[0]
        self.same = items

    def __getitem__(self, index):
        self.first["path"] = "changed"
        return {
            **super().__getitem__(index),
            "tied": self.items[0]["path"] == "changed",
            "same": self.same is self.items,
        }


def test_an_object_referenced_twice_stays_one_object():
    found = load(loader_of(Tied(dicts())))
    assert all(one["tied"] for one in found)
    assert all(one["same"] for one in found)


def test_a_reference_added_between_epochs_stays_one_object():
    dataset = Tied(dicts())
    dataset.first = {}
    loader = loader_of(dataset)
    load(loader)
    dataset.first = dataset.items[0]
    assert all(one["tied"] for one in load(loader))


class Writes(Plain):
    def __getitem__(self, index):
        before = self.items[0]["label"] if "label" in self.items[0] else None
        self.items[0]["label"] = os.getpid()
        return {"before": before, "pid": os.getpid()}


def test_writes_of_a_worker_stay_private():
    dataset = Writes(dicts())
    for _ in range(2):
        for one in load(loader_of(dataset)):
            assert one["before"] in (None, one["pid"])
    assert "label" not in dataset.items[0]


def test_containers_of_objects_are_pickled_with_the_dataset():
    items = [*dicts(), torch.ones(2), np.zeros(3)]
    dataset = Plain(items)
    assert large_containers.snapshot(items) is None
    assert load(loader_of(dataset))[2]["item"] == items[2]
    assert large_containers.snapshot([bytearray(3)] * N) is None, "it can be changed and has no version"


# -- the whole cargo ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Item:
    number: int
    name: str


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of the user's own."""
    made = []

    def make(code: str, name: str = "users_data"):
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(str(tmp_path))
        made.append(name)
        import importlib

        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)


HEAD = """
import os, threading, dataclasses, atexit
@dataclasses.dataclass
class Item:
    number: int
    name: str
class Data:
    def __init__(self, count):
        self.items = [Item(n, str(n) * 20) for n in range(count)]
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return {"number": self.items[index].number, "id": id(self.items), "parent": os.getppid(), "pid": os.getpid(), "more": self.more()}
    def more(self):
        return None
"""
LARGE = 40_000


def test_a_large_dataset_is_rebuilt_once(module):
    users = module(HEAD)
    loader = loader_of(users.Data(LARGE))
    found = load(loader)
    assert [one["number"] for one in found] == list(range(6))
    assert len({one["pid"] for one in found}) == 2
    assert len({one["id"] for one in found}) == 1
    assert loader.statistics().rebuilt == ""
    again = load(loader)
    assert parents(again) == parents(found)
    loader.dataset.items[2].number = -5
    changed = load(loader)
    assert changed[2]["number"] == -5
    assert parents(changed) != parents(found)


UNFIT = {
    "setstate": ("class Own(Data):\n    def __setstate__(self, state):\n        self.__dict__.update(state); self.mine = os.getpid()\n    def more(self):\n        return self.mine == os.getpid()\n", "__setstate__"),
    "reduce": ("class Own(Data):\n    def __reduce__(self):\n        return Own, (len(self.items),)\n    def more(self):\n        return True\n", "__reduce__"),
    "open file": ("class Own(Data):\n    def __init__(self, count):\n        super().__init__(count); self.file = open(__file__, 'rb')\n    def more(self):\n        self.file.seek(0); return len(self.file.read(3)) == 3\n", "opened"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("count", [10, LARGE])
def test_unsuitable_datasets_are_rebuilt_in_each_worker(module, case, count):
    code, reason = UNFIT[case]
    users = module(HEAD + code, f"users_{case.replace(' ', '_')}_{count}")
    loader = loader_of(users.Own(count))
    for _ in range(2):
        found = load(loader)
        assert [one["number"] for one in found] == list(range(6))
        assert all(one["more"] for one in found)
        rebuilt = loader.statistics().rebuilt
        told = count == LARGE and case != "reduce"  # which sends a number only
        assert (reason in rebuilt) if told else rebuilt == ""
        assert not told or reason in str(loader.statistics())
    if case == "open file":
        loader.dataset.file.close()


AT_IMPORT = {
    "thread": "stop = threading.Event(); kept = threading.Thread(target=stop.wait, daemon=True); kept.start()",
    "file": "kept = open(__file__)",
    "socket": "import socket; kept = socket.socketpair()",
    "process": "import subprocess, sys; kept = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3)'])",
    "atexit": "atexit.register(lambda me=os.getpid(): print('never', flush=True) if os.getpid() != me else None)",
    "at fork": "forks = []; os.register_at_fork(after_in_child=lambda: forks.append(os.getpid()))",
}


@pytest.mark.parametrize("case", AT_IMPORT)
def test_modules_with_import_side_effects_are_handled(module, case, capfd):
    users = module(HEAD + AT_IMPORT[case] + "\n", f"users_at_import_{case.replace(' ', '_')}")
    loader = loader_of(users.Data(LARGE))
    found = load(loader)
    assert [one["number"] for one in found] == list(range(6))
    fit = case in ("atexit", "at fork")
    assert (loader.statistics().rebuilt == "") is fit
    assert (fork_server.server_pid() not in parents(found)) is fit
    assert "never" not in capfd.readouterr().out
    kept = getattr(users, "kept", None)
    if case == "thread":
        users.stop.set()
        kept.join(5)
    if case == "process":
        kept.kill()
        kept.wait()
    for one in kept if isinstance(kept, tuple) else [kept] if case == "file" else []:
        one.close()


def test_large_containers_are_shared_even_if_modules_are_unsuitable(module):
    code = (
        HEAD
        + "kept = open(__file__)\nclass Crowd(Data):\n    def __init__(self, items):\n        self.items = items\n    def __getitem__(self, index):\n        return {'id': id(self.items), 'pid': os.getpid(), 'item': self.items[index], 'parent': os.getppid()}\n"
    )
    users = module(code, "users_crowd_unfit")
    found = load(loader_of(users.Crowd([str(n) for n in range(N)])))
    users.kept.close()
    assert len({one["id"] for one in found}) == 1
    assert fork_server.server_pid() not in parents(found)


def test_modules_are_imported_once_and_their_state_is_current(module):
    users = module(
        HEAD
        + "import time\nMOMENT = [time.time()]\nVALUE = 1\nclass Says(Data):\n    def more(self):\n        return VALUE\n",
        "users_state",
    )
    loader = loader_of(users.Says(10))
    first = load(loader)
    users.VALUE = 2
    second = load(loader)
    assert {one["more"] for one in first} == {1}
    assert {one["more"] for one in second} == {2}
    assert parents(first) == parents(second)


class World:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return os.getcwd(), os.environ.get("UNJAM_TEST_WORLD"), len(logging.getLogger().handlers), self.items[index]


def test_workers_see_the_current_folder_and_environment(tmp_path, monkeypatch):
    dataset = World()
    dataset.items = [str(n) for n in range(N)]
    loader = loader_of(dataset, num_workers=1)
    first = load(loader)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNJAM_TEST_WORLD", "new")
    second = load(loader)
    assert second[0][:2] == (str(tmp_path), "new")
    assert first[0][2] == second[0][2], "no handler twice"


class Logs(World):
    def __getitem__(self, index):
        manager = logging.root.manager
        return manager.disable, logging.getLogger("a.library").level, self.items[index]


def test_workers_see_the_current_log_levels():
    """Also levels that the program has reset since the template was made."""
    dataset, library = Logs(), logging.getLogger("a.library")
    dataset.items = [str(n) for n in range(N)]
    loader = loader_of(dataset, num_workers=1)
    try:
        logging.disable(logging.CRITICAL)
        library.setLevel(logging.DEBUG)
        assert load(loader)[0][:2] == (logging.CRITICAL, logging.DEBUG)
    finally:
        logging.disable(logging.NOTSET)
        library.setLevel(logging.NOTSET)
    assert load(loader)[0][:2] == (logging.NOTSET, logging.NOTSET)


# -- ends ----------------------------------------------------------------------------------------------------------------------


def template_of(loader):
    return loader._state.payloads.templates._template


def living(name="unjam-template"):
    found = []
    for entry in os.listdir("/proc"):
        try:
            if (
                entry.isdecimal()
                and name_of(entry) == name
                and Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                found.append(int(entry))
        except OSError:
            continue
    return found


def mine():
    server, found = fork_server.server_pid(), []
    for pid in living():
        try:
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == server:
                found.append(pid)
        except OSError:
            continue
    return found


def gone():
    return wait_until(lambda: gc.collect() is not None and not mine())


def test_a_template_ends_with_its_loader():
    assert gone()
    loader = loader_of(Plain(dicts()))
    load(loader)
    assert len(mine()) == 1
    del loader
    assert gone()


def test_a_killed_template_is_recreated():
    loader = loader_of(Plain(dicts()))
    first = load(loader)
    (template,) = parents(first)
    os.kill(template, signal.SIGKILL)
    second = load(loader)
    assert [one["item"] for one in second] == [one["item"] for one in first]
    assert parents(second) != {template}


class Slow(Plain):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.01)
        return {"index": index, "parent": os.getppid(), "item": self.items[index]["path"]}


@pytest.mark.parametrize("whole", [False, True])
def test_a_template_killed_mid_epoch_loses_nothing(whole, module):
    users = module(
        HEAD
        + "import time\nclass Slowly(Data):\n    def __len__(self):\n        return 60\n    def __getitem__(self, index):\n        time.sleep(0.01)\n        return {'index': index, 'parent': os.getppid()}\n",
        "users_slow",
    )
    loader = loader_of(users.Slowly(LARGE) if whole else Slow(dicts()))
    seen, killed = [], None
    for one in loader:
        seen.append(one["index"])
        if killed is None and len(seen) == 5:
            killed = one["parent"]
            os.kill(killed, signal.SIGKILL)
    assert seen == list(range(60)), "each once, in order"
    assert loader.statistics().restarts >= 1


def test_a_template_killed_while_forking_loses_nothing():
    dataset = Plain(dicts())
    for _ in range(6):
        loader = loader_of(dataset, num_workers=4)
        iterator = iter(loader)
        template = mine()
        if template:
            with contextlib.suppress(ProcessLookupError):  # that of the round before, which has just been killed
                os.kill(template[0], signal.SIGKILL)
        assert len(list(iterator)) == 8


def test_templates_are_limited_in_number():
    loaders = [
        loader_of(Plain([f"{k} {n}" for n in range(N)]), num_workers=1) for k in range(templates.MAX_TEMPLATES + 3)
    ]
    for loader in loaders:
        load(loader)
    assert len(mine()) <= templates.MAX_TEMPLATES
    for number, loader in enumerate(loaders):
        assert load(loader)[0]["item"] == f"{number} 0"
    assert len(mine()) <= templates.MAX_TEMPLATES


def test_an_idle_forker_exits():
    code = (
        "import os, socket, sys, time\n"
        "from unjam.loader.worker.forker import Forker\n"
        "mine, theirs = socket.socketpair()\n"
        "Forker.idle = 0.2\n"
        "if os.fork() == 0:\n"
        "    mine.close()\n"
        "    Forker(theirs.detach(), ()).serve()\n"
        "theirs.close()\n"
        "print(os.wait()[1])\n"
    )
    assert python(["-c", code], check=True).stdout == "0\n"


def test_templates_end_with_the_program():
    code = (
        "import os, signal, unjam\n"
        "class Data:\n"
        "    def __init__(self): self.items = [str(n) for n in range(20_000)]\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return os.getppid()\n"
        "loader = unjam.DataLoader(Data(), batch_size=None, num_workers=1, persistent_workers=True)\n"
        "print(next(iter(loader)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = python(["-c", code])
    template = int(done.stdout)
    wait_until(lambda: template not in living())


def test_a_forked_process_creates_its_own_template():
    loader = loader_of(Plain(dicts()), num_workers=1)
    load(loader)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found = load(loader)
            os.write(write, f"{len(found)} {found[0]['item']['path']}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"8 0.jpg"
    os.close(read)
    assert len(load(loader)) == 8


# -- objects that are not counted ----------------------------------------------------------------------------------------------


def test_disabling_reference_counts_breaks_nothing():
    code = (
        "from unjam.loader.ship import immortal\n"
        "import sys, gc\n"
        "class Data: pass\n"
        "data = Data(); data.items = [{'a': [str(n), n + 1000, n / 7], 'b': (n, {n})} for n in range(5000)]; data.self = data\n"
        "count = immortal.make_immortal([data])\n"
        "assert bool(count) == immortal.supported(), count\n"
        "if count:\n"
        "    one = data.items[7]\n"
        "    before = [sys.getrefcount(x) for x in (one, one['a'], one['a'][0], one['b'])]\n"
        "    held = [one['a']] * 100 + [one] * 100\n"
        "    assert before == [sys.getrefcount(x) for x in (one, one['a'], one['a'][0], one['b'])]\n"
        "    assert count > 5000 * 7, count\n"
        "data.items[3]['new'] = [1]; del data.items[3]['a']; data.items.append(4); gc.collect()\n"
        "assert data.items[3]['new'] == [1] and len(data.items) == 5001\n"
        "del data; gc.collect()\n"
        "print(count)\n"
    )
    done = python(["-c", code])
    assert done.returncode == 0, done.stderr
    assert immortal.supported() == (sys.version_info >= (3, 12))


class Reads(Plain):
    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        one = self.items[index]
        held = [one["path"], one["box"], one["more"]]
        own = 0
        if index % 1000 == 0:
            with open("/proc/self/smaps_rollup") as maps:
                own = sum(int(line.split()[1]) for line in maps if line.startswith("Private_Dirty"))
        return len(held), own


@pytest.mark.skipif(
    not immortal.supported(), reason="objects are always counted before Python 3.12: run the suite there"
)
def test_reading_copies_no_memory():
    items = [{"path": f"{n:020d}.jpg", "box": [n + 1000, n + 2000], "more": (str(n), n / 3)} for n in range(100_000)]
    loader = loader_of(Reads(items), batch_size=500, num_workers=1, collate_fn=None)
    own = [int(value) for _, batch in loader for value in batch.tolist() if value]
    assert own[-1] - own[0] < 12_000, own


def test_the_fork_server_starts_when_a_loader_is_created():
    code = (
        "import unjam, torch\n"
        "from unjam.loader.pool import fork_server\n"
        "data = torch.utils.data.TensorDataset(torch.arange(8))\n"
        "unjam.DataLoader(data)\n"
        "assert fork_server.server_pid() is None\n"
        "loader = unjam.DataLoader(data, num_workers=1)\n"
        "import os\n"
        "assert (fork_server.server_pid() is not None) == (os.cpu_count() > 1)\n"
        "first = fork_server.server_pid()\n"
        "assert len(list(loader)) == 8\n"
        "assert first in (None, fork_server.server_pid())\n"
    )
    done = python(["-c", code])
    assert done.returncode == 0, done.stderr


def test_an_item_that_moves_to_the_next_list_is_a_change():
    groups = [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(N)]
    one, _ = large_containers.snapshot(groups)
    assert one.unchanged()
    groups[1].append(groups[0].pop(0))  # referents of a list are listed from its end
    assert not one.unchanged()


def test_a_dataset_too_large_for_two_copies_is_forked(monkeypatch):
    from unjam.loader.pool import open_pool

    monkeypatch.setattr(open_pool, "_room", lambda: 1 << 20)
    monkeypatch.setattr(open_pool, "_fork_is_safe", lambda: True)
    found = load(loader_of(Plain(dicts())))
    assert parents(found) == {os.getpid()}


@pytest.mark.static
def test_a_descriptor_that_is_closed_while_they_are_listed_is_left_out(monkeypatch):
    closed = os.dup(0)
    os.close(closed)
    monkeypatch.setattr(template, "descriptors", lambda: {0: "", closed: "/gone"})
    assert {fd for fd, _, _ in template._descriptors()} == {0}
