"""Programs that run on torch's loader run on ours: what was once found to fail, kept."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import unjam
from support import Squares, python, script, tear
from unjam import stored
from unjam.doctor.facts.scene import Process
from unjam.doctor.why import heartbeat, relations
from unjam.loader.driver.consumer_lock import ConsumerLock
from unjam.loader.transport.status_page import PAGE_BYTES, Stage, StatusPage
from unjam.system import memory
from unjam.system.waiting import address_text

RUN = [sys.executable, "-m", "unjam", "run"]


# -- what travels with a dataset ---------------------------------------------------------------------------------------


def package(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)


BROKEN = """
class Lazy:
    def __init__(self): self.inside = {}
    def __getattr__(self, name): return getattr(self.inside, name)   # for ever, before there is an `inside`
    def __setstate__(self, state): self.never
class Refuses:
    def __reduce__(self): raise TypeError("not me")
class Asks:
    @property
    def __dict__(self): raise RuntimeError("do not look at me")
lazy, refuses, asks = Lazy(), Refuses(), Asks()
SETTING = "as in the file"
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unpicklable_module_variable_breaks_nothing(tmp_path, workers):
    """Of a package that is not in site-packages: PYTHONPATH, a checkout, a cluster's module."""
    package(tmp_path / "elsewhere", "vendored", BROKEN)
    (tmp_path / "mydata.py").write_text(
        "import vendored\n"
        "class Data:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return vendored.SETTING\n"
    )
    done = script(
        tmp_path,
        f"""
        import mydata, vendored, unjam
        vendored.SETTING = "set"
        loader = unjam.DataLoader(mydata.Data(), batch_size=2, num_workers={workers})
        print(list(loader), loader.incidents)
        """,
        env={"PYTHONPATH": str(tmp_path / "elsewhere")},
    )
    assert done.stdout.strip() == "[['set', 'set']] ()"
    assert not done.stderr


def test_workers_import_no_module_only_to_restore_its_state(tmp_path):
    (tmp_path / "trainer.py").write_text(
        "import os\n"
        "with open('imports', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
        "class Config:\n"
        "    def __init__(self): self.rate = 0.1\n"
        "CONFIG = Config()\n"
    )
    (tmp_path / "mydata.py").write_text(
        "VERSION = 1\nclass Data:\n    def __len__(self): return 2\n    def __getitem__(self, i): return VERSION\n"
    )
    done = script(
        tmp_path,
        """
        import mydata, trainer, unjam
        trainer.CONFIG.rate, mydata.VERSION = 0.2, 7
        for _ in range(2):
            print([b.tolist() for b in unjam.DataLoader(mydata.Data(), batch_size=2, num_workers=2)])
        """,
    )
    assert done.stdout == "[[7, 7]]\n[[7, 7]]\n"
    assert len((tmp_path / "imports").read_text().split()) == 1, "the program's own import, and no worker's"


@pytest.mark.parametrize(
    "how", ["import late", "from . import late", "import importlib; late = importlib.import_module('pkg.late')"]
)
def test_the_state_of_a_lazily_imported_module_is_restored(tmp_path, how):
    package(tmp_path, "pkg", "")
    how = how.replace("import late", "import pkg.late as late") if how == "import late" else how
    (tmp_path / "pkg" / "late.py").write_text("VALUE = 0\nTABLE = {}\nclass Kept:\n    level = 0\n")
    (tmp_path / "pkg" / "data.py").write_text(
        "class Data:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i):\n"
        f"        {how}\n"
        "        return late.VALUE + late.TABLE['x'] + late.Kept.level\n"
    )
    done = script(
        tmp_path,
        """
        import pkg.data, pkg.late, unjam
        pkg.late.VALUE, pkg.late.Kept.level = 1, 100
        pkg.late.TABLE["x"] = 10
        print([b.tolist() for b in unjam.DataLoader(pkg.data.Data(), batch_size=2, num_workers=1)])
        """,
    )
    assert done.stdout.strip() == "[[111, 111]]"


def test_a_module_lambda_writes_to_its_module(tmp_path):
    (tmp_path / "mydata.py").write_text(
        "SETTING = {}\n"
        "class Data:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return SETTING.get('who', 'unset')\n"
        "def prepare():\n"
        "    def init(worker):\n"
        "        global LATER\n"
        "        LATER = worker\n"
        "        SETTING['who'] = f'worker {LATER}'\n"
        "    return init\n"
    )
    done = script(
        tmp_path,
        """
        import mydata, unjam
        print(list(unjam.DataLoader(mydata.Data(), batch_size=2, num_workers=1, worker_init_fn=mydata.prepare())))
        """,
    )
    assert done.stdout.strip() == "[['worker 0', 'worker 0']]"


def test_restoring_warning_filters_imports_nothing(tmp_path):
    site = tmp_path / "site-packages"
    package(
        site, "heavy", "import os\nopen('imported', 'a').write(f'{os.getpid()}\\n')\nclass Old(UserWarning): pass\n"
    )
    script(
        tmp_path,
        """
        import os, sys, warnings
        sys.path.insert(0, os.path.abspath("site-packages"))
        import heavy, unjam
        class Data:
            def __len__(self): return 2
            def __getitem__(self, i):
                if i:
                    heavy = __import__("".join(["hea", "vy"]))  # nobody can tell beforehand
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.warn("old", heavy.Old)
                    return len(caught)
                return "".join(["hea", "vy"]) in sys.modules
        warnings.filterwarnings("ignore", category=heavy.Old)
        (found,) = unjam.DataLoader(Data(), batch_size=2, num_workers=1, collate_fn=list)
        assert found == [False, 0], found
        """,
    )


def test_npz_archives_are_sent(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.arange(8.0))

    class Archive(torch.utils.data.Dataset):
        def __init__(self):
            self.data = np.load(path)

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return self.data["x"][i]

    got = list(unjam.DataLoader(Archive(), batch_size=4, num_workers=2))
    assert got[0].tolist() == [0, 1, 2, 3]


# -- what arrives ------------------------------------------------------------------------------------------------------


class Arrays(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        read_only = np.arange(6.0)
        read_only.flags.writeable = False
        return {
            "read-only": read_only,
            "from bytes": np.frombuffer(b"abcd" * 300, dtype="u1"),
            "large": np.frombuffer(b"abcd" * 30_000, dtype="u1"),
            "big-endian": np.arange(6, dtype=">f4"),
            "strided": np.arange(12, dtype=">f4")[::2],
            "broadcast": np.broadcast_to(np.float32(1), (3, 5)),
            "fortran": np.asfortranarray(np.ones((3, 4))),
        }


def test_arrays_arrive_with_the_same_flags_as_from_torch():
    def flags(kind):
        (batch,) = kind(Arrays(), batch_size=None, num_workers=1, collate_fn=lambda x: x)
        return {k: (tear(a), a.dtype.str, a.flags.writeable, a.flags.fnc, a.strides) for k, a in batch.items()}

    assert flags(unjam.DataLoader) == flags(torch.utils.data.DataLoader)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "samples",
    [
        [torch.tensor(2.5), torch.tensor(1)],
        [{"a": 1}, {"a": 2, "b": 3}],
        ["word", 1],
        [torch.tensor(1, dtype=torch.int8), torch.tensor(300)],
    ],
    ids=["dtypes", "keys", "words", "narrow"],
)
def test_what_torch_collates_is_collated_and_logged(samples, workers, caplog):
    def run(kind):
        try:
            return [tear(batch) for batch in kind(samples, batch_size=2, num_workers=workers)]
        except Exception as error:
            return type(error).__mro__[-3:]

    expected = run(torch.utils.data.DataLoader)
    caplog.clear()
    got = run(unjam.DataLoader)
    assert got == expected
    if isinstance(expected, list):
        assert "sample 1" in caplog.text


def test_a_worker_init_fn_error_is_raised_at_its_position():
    def init(worker):
        if worker == 1:
            time.sleep(0.2 if os.getpid() % 2 else 0)
            raise LookupError("not here")

    for _ in range(3):
        iterator = iter(unjam.DataLoader(Squares(12), batch_size=2, num_workers=2, worker_init_fn=init))
        assert next(iterator)[1].tolist() == [0, 1]
        with pytest.raises(LookupError, match="not here"):
            next(iterator)


class Unmeasured(Squares):
    def __len__(self):
        raise OSError("the index is not there yet")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_length_that_torch_never_reads_is_not_read(workers):
    sampler = [[0, 1], [2, 3]]
    got = [b[1].tolist() for b in unjam.DataLoader(Unmeasured(), batch_sampler=sampler, num_workers=workers)]
    assert got == sampler


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", ["inference", "function"])
def test_torch_modes_of_the_consumer_do_not_break_the_loader(workers, mode):
    class Everything(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.bincount:
                raise AssertionError("the loader computes with torch in the consumer's name")
            return function(*args, **(kwargs or {}))

    made = {"inference": torch.inference_mode, "function": Everything}[mode]
    with made():
        loader = unjam.DataLoader(range(1200), batch_size=1, num_workers=workers)
        for _ in loader:
            pass
        assert loader.statistics().samples == 1200
    for _ in loader:
        pass
    assert loader.statistics().samples == 2400


# -- another torch -----------------------------------------------------------------------------------------------------

# each case in a fork of a process that has imported torch and nothing of ours
FORKS = """
import json, os, sys, torch, torch.utils.data.dataloader
for number, case in enumerate(json.load(sys.stdin)):
    if os.fork() == 0:
        for stream in (1, 2):
            os.dup2(os.open(f"{number}.{stream}", os.O_CREAT | os.O_WRONLY), stream)
        exec(case)
        sys.exit()
    print(os.wait()[1])
"""
LOADERS = """
import unjam
for workers in (0, 2):
    how = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    loader = unjam.DataLoader(range(6), batch_size=2, **how)
    print([b.tolist() for b in loader], type(iter(loader)).__module__.split(".")[0])
"""


def loaders_after(changes, folder):
    """What two loaders print and complain of, and whether they failed, after each of these changes to torch."""
    cases = json.dumps([f"{change}\n{LOADERS}" for change in changes])
    done = python(["-c", FORKS], typed=cases, cwd=folder, warm=False, check=True)
    files = [[(folder / f"{number}.{stream}").read_text() for stream in (1, 2)] for number in range(len(changes))]
    return [(out, err, int(status)) for (out, err), status in zip(files, done.stdout.split(), strict=True)]


LACKING = {
    "a function": "del torch.utils.data._utils.worker._generate_state",
    "a class": "del torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "a table": "del torch.utils.data._utils.collate.default_collate_fn_map",
    "an attribute": "init = torch.utils.data.dataloader._BaseDataLoaderIter.__init__\n"
    "def changed(self, loader): init(self, loader); del self._base_seed\n"
    "torch.utils.data.dataloader._BaseDataLoaderIter.__init__ = changed",
}


def test_torch_iterators_take_over_when_torch_lacks_a_needed_part(tmp_path):
    """torch's own iterator takes over, or (where torch itself lacks what it needs) fails as it would without us."""
    for name, (out, err, status) in zip(LACKING, loaders_after(LACKING.values(), tmp_path), strict=True):
        said = [line for line in err.splitlines() if "using torch's own iterator" in line]
        assert len(said) == 1, (name, out + err)
        # where torch itself needs what is missing, its own code raises, not ours
        frames = [line for line in err.splitlines() if line.startswith('  File "')]
        assert status == 0 or str(Path(unjam.__file__).parent) not in frames[-1], (name, err)


DISPENSABLE = [
    "",
    "del torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe",
    "del torch._C._autograd._profiler_enabled",
    "sys.modules['torch.utils.data.graph_settings'] = None",
    "del torch._tensor_str.PRINT_OPTS, torch._C._set_deterministic_algorithms",
]


def test_dispensable_parts_of_torch_may_be_missing(tmp_path):
    for change, (out, err, _) in zip(DISPENSABLE, loaders_after(DISPENSABLE, tmp_path), strict=True):
        assert out == "[[0, 1], [2, 3], [4, 5]] unjam\n" * 2, (change, err)
        assert "its own iterator" not in err, change


# -- small things ------------------------------------------------------------------------------------------------------


def test_an_interrupted_lock_is_recovered_by_its_thread():
    """A signal handler may raise right after the lock was taken; nobody may release what another thread holds."""
    lock = ConsumerLock()
    lock._lock.acquire()  # taken, and then an exception before anything else
    lock.enter(lambda: False)
    with pytest.raises(RuntimeError, match="already making one"):
        lock.enter(lambda: False)
    entered = threading.Event()
    waiting = threading.Thread(target=lambda: (entered.set(), lock.enter(lambda: False), lock.leave()))
    waiting.start()
    assert entered.wait(60)
    assert waiting.is_alive()
    lock.leave()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_vanished_descriptor_is_ignored(monkeypatch):
    monkeypatch.setattr(relations, "pipes_record_writes", lambda: True)
    read, write = os.pipe()

    class Owners:
        def incoming(self, pid, other):
            return [read, 9999]

    me = Process(os.getpid(), 0, "main", "", "S", 0.0, 0, 0.0, (), main=os.getpid())
    assert relations.silence(me, [me], Owners()) is not None
    os.close(read)
    os.close(write)


def test_ipv6_peers_are_formatted():
    def kernel(host):
        raw = socket.inet_pton(socket.AF_INET6, host)
        return "".join(f"{int.from_bytes(raw[at : at + 4], sys.byteorder):08X}" for at in range(0, 16, 4)) + ":01BB"

    for host in ("2001:db8::7", "::1", "fe80::1:2:3:4"):
        assert address_text(kernel(host), 16) == f"[{host}]:443"
    assert address_text("0100007F:1F90" if sys.byteorder == "little" else "7F000001:1F90", 4) == "127.0.0.1:8080"


def test_the_heartbeat_of_another_process_is_opened_read_only(monkeypatch):
    fd = memory.create(PAGE_BYTES, "page")
    StatusPage(fd).heartbeat(Stage.GETITEM, 7, 3)
    opened = []
    really = os.open

    def watch(path, flags, *rest, **more):
        opened.append(flags)
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(heartbeat.os, "open", watch)
    found = heartbeat.heartbeat_of(os.getpid())
    assert (found.batch, found.position) == (7, 3)
    assert not any(flags & (os.O_RDWR | os.O_WRONLY) for flags in opened)
    os.ftruncate(fd, 16)  # its owner may do that at any moment
    assert heartbeat.heartbeat_of(os.getpid()) is None
    os.close(fd)


def test_stored_files_contain_no_module_paths(tmp_path):
    path = tmp_path / "items.shared"
    made = unjam.SharedList([{"x": torch.ones(2), 1: ("a", 2j)}, {"y": Stage.IDLE}], path=path)
    assert made[0]["x"].tolist() == [1, 1]
    data = path.read_bytes()
    assert b"unjam.shared" not in data
    assert stored.__name__.encode() in data
    del made
    assert unjam.mapped(path, trusted=True)[0]["x"].tolist() == [1, 1]


def test_recommended_extras_exist():
    import re

    root = Path(__file__).parents[1]
    known = set(re.findall(r"^(\w+) = \[", (root / "pyproject.toml").read_text(), re.MULTILINE))
    for file in [*root.glob("src/**/*.py"), *root.glob("docs/**/*.md"), root / "README.md"]:
        for extra in re.findall(r"unjam\[(\w+)\]", file.read_text()):
            assert extra in known, f"{file.name} names unjam[{extra}]"


# -- `unjam run` ---------------------------------------------------------------------------------------------------------


def test_the_fork_server_of_a_run_starts_before_the_program_imports(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "children = open(f'/proc/self/task/{os.getpid()}/children').read().split()\n"
        "from torch.utils.data import DataLoader\n"
        "for _ in DataLoader(range(8), batch_size=2, num_workers=1): pass\n"
        "print(len(children))\n"
    )
    done = subprocess.run([*RUN, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == ("1" if (os.cpu_count() or 1) > 1 else "0")
    assert "unjam's own start" in done.stderr
    observed = [*RUN, "--observe", "train.py"]
    done = subprocess.run(observed, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "0"


def test_waits_of_helper_threads_are_not_counted_as_training_waits(tmp_path):
    (tmp_path / "train.py").write_text(
        "import threading, time\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Slow(Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): time.sleep(0.1); return i\n"
        "threads = [threading.Thread(target=list, args=(iter(DataLoader(Slow(), num_workers=1)),)) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    done = subprocess.run([*RUN, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert "training waited 0 s" in done.stderr, done.stderr
    assert "a helper thread waited" in done.stderr
    assert "what would help most" not in done.stderr


def test_warning_filters_keep_their_order():
    from unjam.loader.ship import warning_filters

    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("error", message="a.*", category=DeprecationWarning, module="x", lineno=3)
        warnings.filterwarnings("ignore", category=UserWarning)
        before = list(warnings.filters)
        taken = warning_filters.collect()
        warnings.resetwarnings()
        warning_filters.use(taken)
        assert list(warnings.filters) == before
    with contextlib.suppress(AttributeError):
        warnings._filters_mutated()
