"""Programs of people who never heard of us: what works on torch's forked workers works here."""

from __future__ import annotations

import os
import signal
import textwrap

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

import unjam
from support import Squares, script, wait_until


def keep(x):
    return x


def test_a_forked_child_does_not_free_batches_of_its_parent():
    class Filled(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.full((100_000,), float(index))

    iterator = iter(unjam.DataLoader(Filled(), num_workers=1))
    held = next(iterator)
    pid = os.fork()
    if pid == 0:
        del held, iterator
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in iterator:
        assert held.unique().tolist() == [0.0]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exceptions_that_would_end_training_silently_are_errors(error):
    class Leaves(Squares):
        def __getitem__(self, index):
            if index == 2:
                raise error("out of here")
            return index

    iterator = iter(unjam.DataLoader(Leaves(), num_workers=1))
    assert [next(iterator).item(), next(iterator).item()] == [0, 1]
    with pytest.raises(RuntimeError, match=f"{error.__name__}: out of here"):
        next(iterator)


def test_classes_of_main_are_not_overwritten_by_returned_objects(tmp_path):
    script(
        tmp_path,
        """
        import dataclasses, typing, unjam
        SCALE = 1
        @dataclasses.dataclass
        class Sample:
            n: int
            seen: typing.ClassVar[int] = 0
            cache: typing.ClassVar[dict] = {}
            def scaled(self): return self.n * SCALE
        class Oops(Exception):
            count = 0
        class Data:
            def __len__(self): return 4
            def __getitem__(self, i):
                if i == 3: raise Oops("three")
                return Sample(i)
        method, got = Sample.scaled, []
        iterator = iter(unjam.DataLoader(Data(), batch_size=None, collate_fn=lambda x: x, num_workers=1))
        for k in range(3):
            sample = next(iterator)
            Sample.seen += 1; Sample.cache[k] = k; SCALE = 10; Oops.count += 1
            got.append(sample.scaled())
        try:
            next(iterator)
        except Oops as error:
            assert type(error) is Oops and Oops.count == 3
        assert (Sample.seen, Sample.cache, got) == (3, {0: 0, 1: 1, 2: 2}, [0, 10, 20]), (Sample.seen, Sample.cache, got)
        assert Sample.scaled is method
        """,
    )


class ReusedList:
    """A batch sampler that yields the same list again and again."""

    def __iter__(self):
        indices = []
        for i in range(0, 24, 2):
            indices[:] = [i, i + 1]
            yield indices

    def __len__(self):
        return 12


def test_a_reused_index_list_survives_worker_death(tmp_path):
    marker = tmp_path / "died"

    class Dies(Squares):
        def __getitem__(self, index):
            if index == 6 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    loader = unjam.DataLoader(Dies(), batch_sampler=ReusedList(), num_workers=1, prefetch_factor=4)
    assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 24, 2)]


def test_persistent_workers_work_again_after_an_error(tmp_path):
    class Fragile(Squares):
        def __getitem__(self, index):
            if index == 5 and not (tmp_path / "mended").exists():
                os._exit(3)
            return index

    loader = unjam.DataLoader(Fragile(10), num_workers=2, persistent_workers=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exited with status 3"):
            list(loader)
    (tmp_path / "mended").touch()
    assert len(list(loader)) == 10


@pytest.mark.parametrize("kind", ["small", "strided", "tensor"])
def test_shared_memory_of_any_kind_stays_shared(kind):
    import multiprocessing

    raw = multiprocessing.get_context("fork").RawArray("i", 400)
    thing = {
        "small": lambda: np.frombuffer(raw, np.int32)[:4],
        "strided": lambda: np.frombuffer(raw, np.int32)[::2],
        "tensor": lambda: torch.frombuffer(raw, dtype=torch.int32)[:4],
    }[kind]()

    class Writes(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            thing[index] = 1
            return index

    list(unjam.DataLoader(Writes(), num_workers=2))
    assert thing[:4].tolist() == [1, 1, 1, 1]


def test_replaced_and_privately_mapped_files_keep_their_content(tmp_path):
    path = tmp_path / "data.bin"
    np.arange(1000, dtype=np.int32).tofile(path)
    private = np.memmap(path, np.int32, mode="c")
    private[:] = -1
    replaced = np.memmap(path, np.int32, mode="r")
    (tmp_path / "new.bin").write_bytes(b"\7" * 4000)
    os.replace(tmp_path / "new.bin", path)
    table = tmp_path / "table.csv"
    table.write_bytes(b"a,b\r\nc,d\r\n")
    with table.open(newline="") as file:

        def look(_):
            return int(private[0]), int(replaced[5]), file.readline()

        (seen,) = unjam.DataLoader([0], batch_size=None, collate_fn=look, num_workers=1)
    assert seen == (-1, 5, "a,b\r\n")


def test_overlapping_windows_are_sent_as_one_buffer():
    from unjam.loader.ship import shipping

    windows = np.lib.stride_tricks.sliding_window_view(np.arange(20_000.0), 1000)
    payload = shipping.ship(windows)
    assert payload.manifest.size < 200_000
    again = shipping.receive(payload.fd, payload.manifest, [])
    assert (again[::500] == windows[::500]).all()


def test_many_views_of_one_tensor_are_not_copied_each():
    class Views(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            base = torch.arange(200_000.0)
            return [base[n:] for n in range(64)]

    iterator = iter(unjam.DataLoader(Views(), batch_size=None, collate_fn=keep, num_workers=1))
    for views in iterator:
        assert [float(view[0]) for view in views] == list(range(64))
        assert sum(handle.leases.mapped_bytes for handle in iterator._pool._handles.values()) < 20 << 20
    del views


def test_hundreds_of_shared_tensors_are_sent():
    # one message carries 253; each is open twice in this process, which may have no more than 1,024
    shared = [torch.full((2,), float(n)).share_memory_() for n in range(300)]

    class Sums(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            shared[index].add_(1)
            return sum(float(t[1]) for t in shared)

    list(unjam.DataLoader(Sums(), num_workers=1))
    assert shared[0].tolist() == [1, 1]


def test_large_index_lists_survive_worker_death():
    class Killed(Dataset):
        def __len__(self):
            return 10

        def __getitems__(self, indices):
            return [len(indices)]

    iterator = iter(
        unjam.DataLoader(Killed(), batch_sampler=[list(range(400_000))] * 6, num_workers=1, prefetch_factor=4)
    )
    next(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    assert [batch.item() for batch in iterator] == [400_000] * 5


def test_configuration_objects_registries_and_flags_reach_workers(tmp_path):
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "imaging.py").write_text("LENIENT = False\n")
    (tmp_path / "conf.py").write_text(
        textwrap.dedent(
            """
            class Config:
                ROOT = "default"
            class Settings:
                def __init__(self): self.root = "default"
            class AttrDict(dict):
                __getattr__ = dict.__getitem__
            cfg, ad, VOCAB = Settings(), AttrDict(root="default"), {}
            """
        )
    )
    (tmp_path / "data.py").write_text(
        "import conf, imaging\n"
        "class Data:\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, i):\n"
        "        return conf.Config.ROOT, conf.cfg.root, conf.ad.root, len(conf.VOCAB), imaging.LENIENT\n"
    )
    script(
        tmp_path,
        """
        import os, sys
        sys.path.insert(0, os.path.abspath("site-packages"))
        import conf, data, imaging, unjam
        conf.Config.ROOT = conf.cfg.root = conf.ad["root"] = "set"
        conf.VOCAB.update({str(i): i for i in range(40_000)})
        imaging.LENIENT = True
        (seen,) = unjam.DataLoader(data.Data(), batch_size=None, collate_fn=lambda x: x, num_workers=1)
        assert seen == ("set", "set", "set", 40_000, True), seen
        """,
    )


def test_libraries_are_imported_with_the_current_environment(tmp_path):
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "reads_env.py").write_text("import os\nFLAG = os.environ.get('LIB_FLAG')\nclass Thing: pass\n")
    script(
        tmp_path,
        """
        import os, sys, unjam
        list(unjam.DataLoader([1], num_workers=1))
        os.environ["LIB_FLAG"] = "set"
        sys.path.insert(0, os.path.abspath("site-packages"))
        import reads_env
        class Data:
            def __init__(self): self.thing = reads_env.Thing()
            def __len__(self): return 1
            def __getitem__(self, i):
                import reads_env
                return reads_env.FLAG
        assert list(unjam.DataLoader(Data(), batch_size=None, num_workers=1)) == ["set"]
        """,
    )


def test_lru_cached_functions_are_sent(tmp_path):
    done = script(
        tmp_path,
        """
        import functools, unjam
        @functools.lru_cache(maxsize=7)
        def load(n): return n * 2
        class Data:
            def __len__(self): return 3
            def __getitem__(self, i): return load(i)
        assert [b.item() for b in unjam.DataLoader(Data(), num_workers=1)] == [0, 2, 4]
        """,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("what", ["constructor", "hidden module"])
def test_objects_that_cannot_be_unpickled_in_a_worker_are_forked(tmp_path, what):
    """It can be pickled, and only the worker finds out that it cannot be unpickled."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "secret.py").write_text("class Thing:\n    value = 5\n")
    done = script(
        tmp_path,
        f"""
        import sys, torch, unjam
        class Odd(Exception):
            def __init__(self, *, code): super().__init__("odd"); self.code = code
        sys.path.insert(0, "hidden")
        import secret
        sys.path.pop(0)
        class Data:
            def __init__(self): self.thing = {"Odd(code=3)" if what == "constructor" else "secret.Thing()"}
            def __len__(self): return 20
            def __getitem__(self, i): return i, torch.rand(1)
        results = []
        for cls in (unjam.DataLoader, torch.utils.data.DataLoader):
            torch.manual_seed(1)
            loader = cls(Data(), batch_size=3, num_workers=2, shuffle=True)
            results.append([[(b[0].tolist(), b[1].tolist()) for b in loader] for _ in range(2)])
        assert results[0] == results[1], results
        """,
    )
    assert done.stderr.count("forked from this process") == 1, done.stderr
    assert ("dataset.thing" in done.stderr) == (what == "constructor")


def test_unusual_logging_and_warning_settings_do_not_stop_a_worker(tmp_path):
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "oddities.py").write_text("class OddWarning(UserWarning): pass\n")
    script(
        tmp_path,
        """
        import logging, sys, warnings, unjam
        list(unjam.DataLoader([1], num_workers=1))
        logging.basicConfig(format="{message}", style="{", level="INFO")
        sys.path.insert(0, "late")
        import oddities
        warnings.simplefilter("ignore", oddities.OddWarning)
        warnings.simplefilter("ignore", type("Made", (UserWarning,), {}))
        assert len(list(unjam.DataLoader(range(4), num_workers=1))) == 4
        """,
    )


@pytest.mark.parametrize("where", ["send", "wait", "start"])
def test_an_asynchronous_exception_loses_nothing(where, monkeypatch):
    """As a signal handler raises it inside next(): caught, and the iteration goes on."""
    iterator = iter(unjam.DataLoader(Squares(60), num_workers=2, timeout=20))
    got = [next(iterator)[1].item()]
    if where == "start":
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
    original, interrupted = getattr(iterator._pool, where), []

    def interrupt(*args):
        if len(interrupted) < 3:
            interrupted.append(1)
            raise InterruptedError("alarm")
        return original(*args)

    monkeypatch.setattr(iterator._pool, where, interrupt)
    while True:
        try:
            got.append(next(iterator)[1].item())
        except InterruptedError:
            continue
        except StopIteration:
            break
    assert len(interrupted) == 3
    assert got == list(range(60))


def test_too_few_descriptors_to_start_is_reported():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    files = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, hard))
        try:
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for fd in files[-5:]:
            os.close(fd)
            files.remove(fd)
        with pytest.raises((OSError, RuntimeError), match=r"descriptors|Too many open files"):
            list(unjam.DataLoader(Squares(4), num_workers=4))
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(unjam.DataLoader(Squares(4), num_workers=2))) == 4


def test_a_process_that_forks_workers_survives_without_descriptors():
    import resource

    loader = unjam.DataLoader(Squares(4), num_workers=1)
    iterator = iter(loader)
    forker = psutil.Process(iterator._workers[0].pid).ppid()
    assert len(list(iterator)) == 4
    wait_until(lambda: not psutil.Process(forker).children())
    limits = resource.prlimit(forker, resource.RLIMIT_NOFILE)
    used = {int(fd) for fd in os.listdir(f"/proc/{forker}/fd")}
    unused = [fd for fd in range(1000) if fd not in used]
    # the three descriptors of a request fit, and a pipe does not, or its end cannot be sent
    for free in (3, 4, 5):
        resource.prlimit(forker, resource.RLIMIT_NOFILE, (unused[free], limits[1]))
        try:
            with pytest.raises(unjam.CannotStartError, match="descriptor limit"):
                list(loader)
        finally:
            resource.prlimit(forker, resource.RLIMIT_NOFILE, limits)
    iterator = iter(loader)
    assert psutil.Process(iterator._workers[0].pid).ppid() == forker
    assert len(list(iterator)) == 4


def test_frozen_dataclass_exceptions_are_raised(tmp_path):
    script(
        tmp_path,
        """
        import dataclasses, unjam
        @dataclasses.dataclass(frozen=True)
        class Frozen(Exception):
            code: int
        class Data:
            def __len__(self): return 2
            def __getitem__(self, i): raise Frozen(7)
        try:
            list(unjam.DataLoader(Data(), num_workers=1))
        except Frozen as error:
            assert error.code == 7
        else:
            raise SystemExit("no error")
        """,
    )
