"""What reaches a worker: by value, with its meaning, or with an error that names the attribute."""

from __future__ import annotations

import io
import logging
import mmap
import multiprocessing
import sqlite3
import threading
import warnings
import zipfile

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import unjam
from support import Squares, python, script, tear
from unjam.errors import CannotShipError
from unjam.loader.pool import open_pool
from unjam.loader.pool.cannot_ship import attempt
from unjam.loader.ship import shipping, warning_filters
from unjam.loader.ship.pickle_culprit import find_culprit
from unjam.system import fork_safety
from unjam.system.fork_safety import ForkFacts
from unjam.system.proc_files import memory_maps


class Holds(Dataset):
    """A dataset with one attribute, and a function that says what a worker sees of it."""

    def __init__(self, thing, look):
        self.thing = thing
        self.look = look

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.look(self.thing, index)


def seen(thing, look, *, workers=2, **options):
    loader = unjam.DataLoader(
        Holds(thing, look), batch_size=None, collate_fn=lambda x: x, num_workers=workers, **options
    )
    return list(loader)


def round_trip(thing):
    payload = shipping.ship(thing)
    return shipping.receive(payload.fd, payload.manifest, [int(fd) for fd in payload.extra_fds])


# -- by value ----------------------------------------------------------------------------------------------------------


def test_lambdas_closures_and_local_classes_are_sent():
    factor = 3

    class Local:
        def times(self, x):
            return x * factor

    assert seen(lambda x: x + 1, lambda f, i: f(i)) == [1, 2, 3, 4]
    assert seen(Local(), lambda obj, i: obj.times(i)) == [0, 3, 6, 9]


def test_arrays_are_placed_out_of_band_and_are_private():
    array = np.arange(1000.0)
    tensor = torch.arange(1000.0)

    def scribble(things, index):
        array, tensor = things
        array[0] += 1
        tensor[0] += 1
        return float(array[0]), float(tensor[0]), float(array[999])

    got = seen((array, tensor), scribble, workers=1)
    assert got == [(n, n, 999.0) for n in range(1, 5)], "a worker writes to its own copy"
    assert array[0] == tensor[0] == 0, "and the parent does not see it"
    assert [b[0] for b in seen((array, tensor), scribble, workers=1)] == [1, 2, 3, 4], "nor the next worker"


def test_views_of_one_storage_stay_views():
    base = torch.arange(100.0)
    first, second = round_trip((base, base[10:20]))
    first[10] = -1
    assert second[0] == -1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_kind_of_tensor_is_sent():
    from test_transport import ZOO

    for name, thing in ZOO.items():
        if name not in ("class", "exception"):
            assert tear(round_trip(thing)) == tear(thing), name


def test_an_unchanged_payload_is_reused():
    dataset = Holds(np.zeros(100_000), lambda a, i: float(a[i]))
    loader = unjam.DataLoader(dataset, batch_size=None, num_workers=1)
    assert list(loader) == [0, 0, 0, 0]
    first = loader._state.payloads.payload
    list(loader)
    assert loader._state.payloads.payload is first
    dataset.thing[2] = 5
    assert list(loader) == [0, 0, 5, 0], "what changed between epochs reaches the new workers"
    assert loader._state.payloads.payload is not first


def test_workers_share_one_copy_of_the_array():
    """Summed over the workers, the array's memory is there once."""
    import psutil

    array = np.ones(50 << 20, dtype=np.uint8)

    def touch(array, index):
        return int(array[::4096].sum())

    dataset = Holds(array, touch)
    iterator = iter(unjam.DataLoader(dataset, batch_size=None, num_workers=4, persistent_workers=True))
    list(iterator)
    workers = [psutil.Process(w.pid) for w in iterator._workers]
    payload = 0
    for worker in workers:
        for mapping in worker.memory_maps(grouped=False):
            if "unjam-payload" in mapping.path:
                payload += mapping.pss
    # the parent maps it too, so the workers' share is four fifths or less
    assert 0.5 * array.nbytes < payload < 1.1 * array.nbytes


# -- meaning -----------------------------------------------------------------------------------------------------------


def test_shared_tensors_stay_shared():
    counter = torch.zeros(4, dtype=torch.int64).share_memory_()

    def count(counter, index):
        counter[index] += index + 1
        return index

    seen(counter, count)
    assert counter.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_objects_of_any_context_are_sent(method, caplog):
    context = multiprocessing.get_context(method)
    value, lock, queue = context.Value("i", 0), context.Lock(), context.SimpleQueue()

    def use(things, index):
        value, lock, queue = things
        with lock:
            value.value += index
            queue.put(index)
        return index

    open_pool._warned.clear()
    with caplog.at_level(logging.WARNING, "unjam"):
        assert seen((value, lock, queue), use) == [0, 1, 2, 3]
    said = [record.getMessage() for record in caplog.records]
    if method == "fork":
        assert said[0].startswith("dataset.thing[0] (multiprocessing.sharedctypes.Synchronized) cannot be sent")
    else:
        assert said == []
    assert value.value == 6
    assert sorted(queue.get() for _ in range(4)) == [0, 1, 2, 3]
    queue.close()


def test_manager_proxies_are_sent():
    with multiprocessing.get_context("fork").Manager() as manager:
        cache = manager.dict()

        def fill(cache, index):
            cache[index] = index * index
            return index

        seen(cache, fill)
        assert dict(cache) == {0: 0, 1: 1, 2: 4, 3: 9}


def test_named_shared_memory_survives_its_workers():
    from multiprocessing import shared_memory

    segment = shared_memory.SharedMemory(create=True, size=64)
    try:

        def write(segment, index):
            segment.buf[index] = index + 1
            return index

        seen(segment, write)
        seen(segment, write)
        assert bytes(segment.buf[:4]) == b"\1\2\3\4"
    finally:
        segment.close()
        segment.unlink()


def test_memory_maps_are_mapped_and_not_copied(tmp_path):
    path = tmp_path / "data.bin"
    np.arange(10_000, dtype=np.int32).tofile(path)
    whole = np.memmap(path, dtype=np.int32, mode="r+", shape=(100, 100))
    part = whole[10:20, ::2]
    plain = np.asarray(whole)[5]
    payload = shipping.ship((whole, part, plain))
    assert payload.manifest.size < 10_000, "the file's bytes do not travel"
    again, again_part, again_plain = shipping.receive(payload.fd, payload.manifest, [])
    assert (again == whole).all()
    assert (again_part == part).all()
    assert (again_plain == plain).all()
    assert type(again) is np.memmap
    assert type(again_plain) is np.ndarray
    again[0, 0] = 77
    assert whole[0, 0] == 77, "a shared map stays shared"


def _array_of_value():
    return np.frombuffer(multiprocessing.get_context("fork").Array("i", 4096, lock=True).get_obj(), dtype=np.int32)


def _tensor_of_array():
    return torch.from_numpy(np.ctypeslib.as_array(multiprocessing.get_context("fork").RawArray("i", 4096)))


def _part_of_array():
    return np.frombuffer(multiprocessing.get_context("fork").RawArray("i", 70_000), dtype=np.int32)[5000:60_000:2]


@pytest.mark.parametrize("make", [_array_of_value, _tensor_of_array, _part_of_array], ids=lambda f: f.__name__)
def test_multiprocessing_memory_stays_shared(make, caplog):
    shared = make()

    def write(array, index):
        array[index] = index + 1
        return index

    with caplog.at_level(logging.WARNING, "unjam"):
        seen(shared, write)
    assert shared[:4].tolist() == [1, 2, 3, 4]
    assert not caplog.records, "it was sent: nothing was forked"


def test_shared_memory_without_a_descriptor_is_not_silently_copied(caplog):
    import mmap

    mapping = mmap.mmap(-1, 16384)  # shared with children only; this process has no descriptor of it
    array = np.frombuffer(mapping, dtype=np.int32)
    with pytest.raises(shipping.CannotPickle, match="shared between processes"):
        shipping.ship(Holds(array, None))

    def write(array, index):
        array[index] = index + 1
        return index

    open_pool._warned.clear()
    with caplog.at_level(logging.WARNING, "unjam"):
        seen(array, write)
    assert array[:4].tolist() == [1, 2, 3, 4], "forked instead, so that the memory stays shared"
    assert "per_worker" not in caplog.text


def test_locks_events_and_thread_locals_are_recreated():
    local = threading.local()
    local.name = "parent"
    things = {"lock": threading.Lock(), "rlock": threading.RLock(), "event": threading.Event(), "local": local}

    def use(things, index):
        with things["lock"], things["rlock"]:
            things["event"].set()
            return things["local"].name, things["event"].is_set()

    assert seen(things, use) == [("parent", True)] * 4


def test_a_lock_that_a_thread_holds_arrives_unlocked():
    """A fork would leave it locked in the worker for ever."""
    lock, nested = threading.Lock(), threading.RLock()

    def use(locks, index):
        for one in locks:
            with one:
                pass
        return index

    with lock, nested:
        assert seen([lock, nested], use) == [0, 1, 2, 3]
        assert lock.locked(), "the program's own stays as it was"


def test_files_get_their_own_offset(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {n:04}\n" for n in range(400)))
    binary, text = path.open("rb"), path.open(encoding="utf-8")
    binary.seek(20)

    def read(files, index):
        binary, text = files
        start = binary.tell()
        binary.seek(index * 10)
        return start, binary.read(9).decode(), text.readline()

    with binary, text:
        got = seen((binary, text), read, workers=4)
        assert [line for _, line, _ in got] == [f"line {n:04}" for n in range(4)]
        assert [start for start, _, _ in got] == [20] * 4
        assert [first for *_, first in got] == ["line 0000\n"] * 4
        assert binary.tell() == 20


def test_archives_opened_in_init_are_sent(tmp_path):
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(50):
            archive.writestr(f"{n}.txt", f"content {n} " * 200)
    with zipfile.ZipFile(path) as archive:
        got = seen(archive, lambda archive, i: archive.read(f"{i * 10}.txt")[:10].decode().strip(), workers=4)
    assert got == ["content 0", "content 10", "content 20", "content 30"]


# -- what cannot be sent -----------------------------------------------------------------------------------------------


class Step:
    def __init__(self, fn):
        self.fn = fn


class Compose:
    def __init__(self, steps):
        self.steps = steps


@pytest.fixture
def no_fork(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])


def test_an_unsendable_attribute_is_named(no_fork):
    dataset = Squares()
    dataset.transform = Compose([Step(None), Step(len), Step(sqlite3.connect(":memory:"))])
    with pytest.raises(CannotShipError) as caught:
        iter(unjam.DataLoader(dataset, num_workers=1))
    assert caught.value.path == "dataset.transform.steps[2].fn"
    assert caught.value.type_name == "sqlite3.Connection"
    text = str(caught.value)
    assert text.startswith("dataset.transform.steps[2].fn cannot be sent to a worker: its type is sqlite3.Connection")
    assert "help:" in text
    dataset.transform.steps[2].fn.close()


def test_per_worker_is_not_suggested_for_shared_objects(no_fork):
    dataset = Squares()
    dataset.count = multiprocessing.get_context("fork").Value("i")
    with pytest.raises(CannotShipError) as caught:
        iter(unjam.DataLoader(dataset, num_workers=1))
    assert "per_worker" not in str(caught.value)
    assert "multiprocessing.get_context('spawn')" in str(caught.value)


def test_the_search_for_the_culprit_does_not_change_classes_of_main(tmp_path):
    """To rebuild a class of `__main__` lays copies of its methods over it, which read copies of the program's variables."""
    done = script(
        tmp_path,
        """
        import sqlite3, unjam
        EPOCH = 0
        class Data:
            def __init__(self): self.db = sqlite3.connect(":memory:")
            def __len__(self): return 2
            def __getitem__(self, i): return EPOCH
        before = Data.__getitem__
        data = Data()
        for EPOCH in range(2):
            print([batch.tolist() for batch in unjam.DataLoader(data, batch_size=2, num_workers=1)])
        assert Data.__getitem__ is before
        """,
    )
    assert done.stdout.split("\n")[:2] == ["[[0, 0]]", "[[1, 1]]"]


def test_culprits_are_found_in_every_kind_of_container(tmp_path):
    file = (tmp_path / "log.txt").open("w")
    closure = file

    def uses():
        return closure

    class Slotted:
        __slots__ = ("inner",)

    slotted = Slotted()
    slotted.inner = {"key": [file]}
    import functools

    cases = {
        "x['a'][1]": {"a": [1, file]},
        "x.inner['key'][0]": slotted,
        "x -> variable 'closure' of the enclosing function": uses,
        "x.args[0]": functools.partial(print, file),
        "x.keywords['file']": functools.partial(print, file=file),
        "x": file,
    }
    with file:
        for path, thing in cases.items():
            culprit = find_culprit("x", thing, attempt)
            assert culprit is not None
            assert (culprit.path, culprit.type_name) == (path, "_io.TextIOWrapper"), path
    assert find_culprit("x", {"fine": [1]}, attempt) is None


def test_falling_back_to_fork_is_logged_once(caplog):
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("create table t (n integer)")
    connection.executemany("insert into t values (?)", [(n,) for n in range(10, 14)])
    open_pool._warned.clear()
    with caplog.at_level(logging.WARNING, "unjam"):
        for _ in range(2):
            got = seen(connection, lambda db, i: db.execute("select n from t limit 1 offset ?", (i,)).fetchone()[0])
            assert got == [10, 11, 12, 13]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        "dataset.thing (sqlite3.Connection) cannot be sent to a worker, so workers are forked from this process, "
        "as in torch; forking is safe at the moment; all workers share it: "
    )
    assert "unjam.per_worker(" in message
    connection.close()


def test_a_dataset_too_large_for_a_second_copy_is_forked(monkeypatch, caplog):
    monkeypatch.setattr(open_pool, "_room", lambda: 100_000)
    open_pool._warned.clear()
    loader = unjam.DataLoader(Holds(np.ones(200_000), lambda a, i: float(a[i])), batch_size=None, num_workers=1)
    with caplog.at_level(logging.WARNING, "unjam"):
        assert list(loader) == [1.0] * 4
    assert "a second copy would leave too little memory" in caplog.text
    assert loader._state.payloads.payload is None
    monkeypatch.setattr(open_pool, "_fork_is_safe", lambda: False)
    assert list(loader) == [1.0] * 4, "where fork is not safe it is sent all the same"
    assert loader._state.payloads.payload is not None


def test_other_threads_are_logged_as_a_risk_of_fork(caplog):
    """torch would fork: a progress bar's thread must not end a training that runs on torch."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(30,), name="background")
    thread.start()
    connection = sqlite3.connect(":memory:")
    open_pool._warned.clear()
    try:
        with caplog.at_level(logging.WARNING, "unjam"):
            for _ in range(2):
                assert seen(connection, lambda db, i: i) == [0, 1, 2, 3]
            assert seen(connection, lambda db, i: i, multiprocessing_context="fork") == [0, 1, 2, 3]
    finally:
        stop.set()
        thread.join(10)
        connection.close()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "dataset.thing (sqlite3.Connection) cannot be sent" in said
    assert "the risk: 1 other Python thread is running (background)" in said
    assert "help:" in said


@pytest.mark.parametrize("kind", ["Value", "Lock", "Queue", "Event", "Barrier"])
def test_fork_context_objects_work_with_other_threads(tmp_path, kind):
    """As tqdm's monitor, a queue's feeder or a logger's thread is, in most programs."""
    made = {"Value": "Value('i', 0)", "Barrier": "Barrier(1)"}.get(kind, f"{kind}()")
    use = {
        "Value": "self.thing.value += 1",
        "Lock": "self.thing.acquire(); self.thing.release()",
        "Queue": "self.thing.put(i)",
        "Event": "self.thing.set()",
        "Barrier": "self.thing.wait(5)",
    }[kind]
    check = {
        "Value": "data.thing.value == 8",
        "Queue": "sorted(data.thing.get(timeout=5) for _ in range(8)) == sorted([*range(4)] * 2)",
    }
    done = script(
        tmp_path,
        f"""
        import multiprocessing, threading, sys
        if sys.argv[1] == "torch":
            from torch.utils.data import DataLoader
        else:
            from unjam import DataLoader
        class Data:
            def __init__(self): self.thing = multiprocessing.get_context("fork").{made}
            def __len__(self): return 4
            def __getitem__(self, i):
                {use}
                return i
        monitor = threading.Thread(target=threading.Event().wait, daemon=True, name="monitor")
        monitor.start()
        data = Data()
        for epoch in range(2):
            assert [b.tolist() for b in DataLoader(data, batch_size=2, num_workers=1)] == [[0, 1], [2, 3]]
        assert {check.get(kind, "True")}
        print("well")
        """,
        arguments=["unjam"],
    )
    assert done.stdout.strip() == "well"


def test_explicit_spawn_never_forks():
    connection = sqlite3.connect(":memory:")
    with pytest.raises(CannotShipError, match=r"dataset\.thing cannot be sent to a worker by spawn"):
        seen(connection, lambda db, i: i, multiprocessing_context="spawn")
    connection.close()


@pytest.mark.parametrize(
    ("facts", "safe"),
    [
        (ForkFacts((), 0, (), None), True),
        (ForkFacts((), 7, (), None), True),
        (ForkFacts(("tqdm",), 0, (), None), False),
        (ForkFacts((), 3, ("grpc",), None), False),
        (ForkFacts((), 0, (), "CUDA"), False),
    ],
)
def test_fork_safety_is_judged_from_facts(facts, safe):
    assert bool(fork_safety.risks(facts)) is not safe


# -- scripts, notebooks, modules ---------------------------------------------------------------------------------------


def test_a_script_without_a_main_guard_works(tmp_path):
    done = script(
        tmp_path,
        """
        import torch, unjam
        SCALE = 3
        class Data(torch.utils.data.Dataset):
            def __init__(self): super().__init__(); self.f = lambda x: x * SCALE
            def __len__(self): return 5
            def __getitem__(self, i): return Sample(self.f(i))
        class Sample:
            def __init__(self, n): self.n = n
        SCALE = 4
        for sample in unjam.DataLoader(Data(), batch_size=None, collate_fn=lambda s: s, num_workers=2):
            assert type(sample) is Sample, type(sample)
            print(sample.n)
        """,
    )
    assert done.stdout.split() == ["0", "4", "8", "12", "16"]


def test_a_program_from_standard_input_works(tmp_path):

    program = (
        "import torch, unjam\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, i): return i\n"
        "\n"
        "print([b.item() for b in unjam.DataLoader(Data(), num_workers=2)])\n"
    )
    for arguments, text in (["-"], program), (["-c", program], None), (["-i", "-q"], program + "\n"):
        done = python([*arguments], typed=text, cwd=tmp_path)
        assert "[0, 1, 2]" in done.stdout, done.stderr


def test_module_settings_reach_the_workers(tmp_path):
    (tmp_path / "config.py").write_text(
        "import random\nROOT = 'default'\nOPTIONS = {'size': 1}\nSPLIT = random.sample(range(10**6), 100)\n"
        "client = None\nready = False\n"
    )
    (tmp_path / "data.py").write_text(
        "import config\nfrom config import OPTIONS\n"
        "class Data:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i):\n"
        "        return config.ROOT, OPTIONS['size'], sum(config.SPLIT), config.ready\n"
    )
    done = script(
        tmp_path,
        """
        import config, data, unjam
        config.ROOT = "changed"
        config.OPTIONS["size"] = 64
        for _ in range(2):
            for seen in unjam.DataLoader(data.Data(), batch_size=None, num_workers=1):
                assert seen == ["changed", config.OPTIONS["size"], sum(config.SPLIT), False], seen
            config.OPTIONS["size"] = 128
        config.client, config.ready = open("/dev/null", "w"), True
        for seen in unjam.DataLoader(data.Data(), batch_size=None, num_workers=1):
            assert seen[3] is False, "ready without the client would be a lie"
        """,
    )
    assert done.stderr == ""


def test_workers_see_the_current_environment_of_the_parent(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "late_module.py").write_text("NAME = 'found'\n")
    done = script(
        tmp_path,
        """
        import logging, multiprocessing, os, sys, warnings
        import numpy as np, torch, unjam

        class World(torch.utils.data.Dataset):
            def __len__(self): return 1
            def __getitem__(self, i):
                import late_module
                with warnings.catch_warnings(record=True) as caught:
                    pass
                return dict(
                    cwd=os.getcwd(), env=os.environ.get("LATE"), gone=os.environ.get("HOME"), argv=list(sys.argv),
                    module=late_module.NAME, dtype=str(torch.get_default_dtype()),
                    deterministic=torch.are_deterministic_algorithms_enabled(), grad=torch.is_grad_enabled(),
                    level=logging.getLogger("mine").level, filters=warnings.filters[0][0],
                    process=multiprocessing.current_process().name,
                    parent=multiprocessing.parent_process().pid, umask=os.umask(0),
                    recursion=sys.getrecursionlimit(), errors=np.geterr()["divide"],
                    affinity=sorted(os.sched_getaffinity(0)),
                    strategy=torch.multiprocessing.get_sharing_strategy(),
                )

        list(unjam.DataLoader(range(2), num_workers=1))  # the server is running: everything below comes later
        os.chdir("elsewhere")
        os.environ["LATE"] = "yes"
        del os.environ["HOME"]
        sys.path.insert(0, os.getcwd())
        sys.argv.append("--flag")
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.multiprocessing.set_sharing_strategy("file_system")
        logging.getLogger("mine").setLevel(37)
        warnings.simplefilter("ignore", UserWarning)
        np.seterr(divide="raise")
        sys.setrecursionlimit(4321)
        os.umask(0o077)
        os.sched_setaffinity(0, {0})
        with torch.no_grad():
            (seen,) = unjam.DataLoader(World(), batch_size=None, collate_fn=lambda x: x, num_workers=1)
        expected = dict(
            cwd=os.getcwd(), env="yes", gone=None, argv=sys.argv, module="found", dtype="torch.float64",
            deterministic=True, grad=False, level=37, filters="ignore", process="unjam-worker-0",
            parent=os.getpid(), umask=0o077, recursion=4321, errors="raise", affinity=[0], strategy="file_system",
        )
        for key, value in expected.items():
            assert seen[key] == value, (key, seen[key], value)
        """,
    )
    assert done.returncode == 0


def test_new_warning_filters_apply_to_warnings_that_were_shown():
    def warn():
        warnings.warn("again", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        warn()
        warn()
        assert len(shown) == 1
        warning_filters.use([warning_filters.Filter("always", None, "builtins", "UserWarning", None, 0)])
        warn()
        assert len(shown) == 2


def test_prints_and_logs_of_workers_go_where_the_parents_go(tmp_path):
    done = script(
        tmp_path,
        """
        import logging, os, sys, unjam
        list(unjam.DataLoader([1], num_workers=1))
        logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(message)s", stream=sys.stdout)
        out = os.open("captured.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        class Talks:
            def __len__(self): return 1
            def __getitem__(self, i):
                print("printed in the worker")
                logging.info("logged in the worker")
                return i
        list(unjam.DataLoader(Talks(), num_workers=1))
        """,
    )
    text = (tmp_path / "captured.txt").read_text()
    assert "printed in the worker" in text
    assert "INFO:logged in the worker" in text
    assert done.stderr == ""


def test_the_multiprocessing_fork_server_is_not_disturbed():
    from multiprocessing import forkserver

    before = forkserver._forkserver._forkserver_pid
    list(unjam.DataLoader(Squares(4), num_workers=2))
    assert forkserver._forkserver._forkserver_pid == before
    assert not forkserver._forkserver._preload_modules or "unjam" not in str(forkserver._forkserver._preload_modules)


def test_string_io_and_big_lists_are_sent():
    assert round_trip(io.BytesIO(b"abc")).read() == b"abc"
    many = [f"string {n}" for n in range(100_000)]
    assert round_trip(many) == many


def test_a_spawned_rank_can_send_its_own_classes(tmp_path):
    # there the program's module is called __mp_main__, and no worker can import that either
    program = tmp_path / "ranks.py"
    program.write_text(
        "import collections, multiprocessing, os, sys\n"
        "from unjam import DataLoader\n"
        "Pair = collections.namedtuple('Pair', 'a b')\n"
        "class Own:\n"
        "    def __len__(self):\n"
        "        return 4\n"
        "    def __getitem__(self, i):\n"
        "        return Pair(i, os.getppid())\n"
        "def rank():\n"
        "    got = list(DataLoader(Own(), batch_size=None, num_workers=1))\n"
        "    assert [type(one) is Pair for one in got] == [True] * 4\n"
        "    assert got[0].b != os.getpid(), 'forked'\n"
        "    print([one.a for one in got], Own.__module__)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=rank)\n"
        "    child.start()\n"
        "    child.join(50)\n"
        "    sys.exit(child.exitcode)\n"
    )
    done = python([str(program)])
    assert done.stdout == "[0, 1, 2, 3] __mp_main__\n", done.stderr
    assert done.stderr == ""


def test_memory_maps_are_read_whatever_the_paths_of_mapped_files(tmp_path):
    """Some characters of a path end a line for `str.splitlines`."""
    path = tmp_path / "photos\u2028 2024\x0c.bin"
    path.write_bytes(b"x" * 8192)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert str(path) in [one.path for one in memory_maps()]
    assert list(memory_maps("0")) == []
