"""What a worker does to itself before user code runs: threads, signals, signs of life."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

import unjam
from support import script, wait_until
from unjam.loader.transport.status_page import Stage


class Asks(Dataset):
    def __init__(self, question):
        self.question = question

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.question()


def ask(question, **options):
    (answer,) = unjam.DataLoader(Asks(question), batch_size=None, collate_fn=lambda x: x, num_workers=1, **options)
    return answer


def pools():
    import threadpoolctl

    return {info["internal_api"]: info["num_threads"] for info in threadpoolctl.threadpool_info()}


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_workers_have_one_compute_thread(method):
    torch.ones(300, 300) @ torch.ones(300, 300)

    def threads():
        return torch.get_num_threads(), set(pools().values()), os.environ["OPENCV_FOR_THREADS_NUM"]

    assert ask(threads, multiprocessing_context=method) == (1, {1}, "1")


def test_worker_threads_sets_the_number_of_threads():
    assert ask(torch.get_num_threads, worker_threads=2) == 2
    assert ask(lambda: os.environ.get("OMP_NUM_THREADS"), worker_threads=2) == "2"
    untouched = ask(lambda: os.environ.get("OMP_NUM_THREADS"), worker_threads=None)
    assert untouched == os.environ.get("OMP_NUM_THREADS")


@pytest.mark.parametrize("options", ["", "multiprocessing_context='fork'"])
@pytest.mark.parametrize("where", ["in the parent", "in the worker", "from a submodule"])
def test_opencv_is_limited_when_it_is_imported_late(tmp_path, where, options):
    """With a stand-in: what matters is that its API is called right after its import, wherever that happens."""
    package = tmp_path / "site-packages" / "cv2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("_threads = 8\ndef setNumThreads(n):\n    global _threads\n    _threads = n\n")
    (package / "extra.py").write_text("import cv2\n")
    parent = "import cv2" if where == "in the parent" else ""
    worker = "import cv2.extra" if where == "from a submodule" else "import cv2"
    done = script(
        tmp_path,
        f"""
        import os, sys, unjam
        sys.path.insert(0, os.path.abspath("site-packages"))
        {parent}
        class Data:
            def __len__(self): return 1
            def __getitem__(self, i):
                {worker}
                import cv2, importlib
                assert cv2.__spec__.loader is cv2.__loader__ and type(cv2.__loader__).__name__ == "SourceFileLoader"
                return cv2._threads
        print(list(unjam.DataLoader(Data(), batch_size=None, num_workers=1, {options})))
        """,
    )
    # its pool may have run in the parent: a call that resizes it in a forked child crashes there
    left_alone = where == "in the parent" and options
    assert done.stdout.strip() == ("[8]" if left_alone else "[1]")


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_opencv_in_the_training_process_does_not_block_workers(tmp_path, context):
    done = script(
        tmp_path,
        f"""
        import cv2, numpy as np, unjam
        image = np.random.randint(0, 255, (1500, 1500, 3), np.uint8)
        class Blurred:
            def __len__(self): return 8
            def __getitem__(self, i): return float(cv2.GaussianBlur(np.full((300, 300), i, np.uint8), (11, 11), 0).mean())
        if __name__ == "__main__":
            cv2.GaussianBlur(image, (31, 31), 0)  # its pool of threads runs now
            loader = unjam.DataLoader(Blurred(), batch_size=4, num_workers=2, multiprocessing_context={context!r})
            print([batch.tolist() for batch in loader])
            assert not loader.incidents, loader.incidents
        """,
    )
    assert done.stdout.strip() == "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]"


def test_real_opencv_is_limited():
    import cv2

    assert cv2.getNumThreads() > 1 or os.cpu_count() == 1

    def threads():
        import cv2

        return cv2.getNumThreads()

    assert ask(threads) == 1


def test_a_library_that_starts_threads_is_imported_in_the_workers(tmp_path):
    """Forking a server that has threads would bring the old trouble back."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "threadlib.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "class Thing:\n    def __init__(self, n): self.n = n\n"
    )
    (site / "quietlib.py").write_text("class Quiet:\n    pass\n")
    done = script(
        tmp_path,
        """
        import os, sys
        sys.path.insert(0, os.path.abspath("site-packages"))
        import quietlib, threadlib, unjam
        from unjam.loader.pool import fork_server
        first = iter(unjam.DataLoader(range(50), num_workers=1))
        next(first)
        server = fork_server.shared()
        class Data:
            def __init__(self): self.thing, self.quiet = threadlib.Thing(3), quietlib.Quiet()
            def __len__(self): return 4
            def __getitem__(self, i): return self.thing.n * i
        for _ in range(2):
            print([b.item() for b in unjam.DataLoader(Data(), num_workers=2)])
        assert fork_server.shared() is server
        with open(f"/proc/{server.pid}/environ") as environ:  # of its last exec
            assert '"refused": ["threadlib"]' in environ.read()
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1
        assert len(list(first)) == 49, "workers of before are still served"
        """,
    )
    assert done.stdout.count("[0, 3, 6, 9]") == 2
    assert done.stderr == ""


@pytest.mark.parametrize("at_the_top", ["", "import heavylib.inner as short"])
def test_modules_needed_by_workers_are_imported_once(tmp_path, at_the_top):
    """Submodules too: to import `heavylib` alone would leave the seconds to every worker in every epoch."""
    site = tmp_path / "site-packages" / "heavylib"
    site.mkdir(parents=True)
    (site / "__init__.py").touch()
    (site / "inner.py").write_text("import os\n_where = os.getpid()\n")
    (tmp_path / "mydata.py").write_text(
        "class Data:\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, i):\n"
        "        import heavylib.inner, os\n"
        "        return heavylib.inner._where == os.getpid()\n"
        f"{at_the_top}\n"
    )
    script(
        tmp_path,
        f"""
        import os, sys, unjam
        sys.path.insert(0, os.path.abspath("site-packages"))
        import mydata
        loader = unjam.DataLoader(mydata.Data(), batch_size=None, num_workers=1)
        if not {bool(at_the_top)}:
            assert list(loader) == [True], "nothing says that a sample will import it: the first worker does"
        assert list(loader) == [False], "the next finds it imported"
        """,
    )


def test_get_worker_info_and_seeds_match_torch():
    def look():
        info = get_worker_info()
        return info.id, info.num_workers, info.seed == torch.initial_seed(), type(info.dataset).__name__

    assert ask(look) == (0, 1, True, "Asks")
    assert get_worker_info() is None


def test_no_segment_is_created_in_dev_shm():
    class Many(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.ones(1 << 16)

    def collate(samples):
        mine = [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name or "unjam" in name]
        return torch.utils.data.default_collate(samples), mine

    for _, segments in unjam.DataLoader(Many(), batch_size=2, num_workers=2, collate_fn=collate):
        assert segments == []  # torch's loader has one for each batch: torch_PID_RANDOM_NUMBER


# -- signs of life -----------------------------------------------------------------------------------------------------


class Stuck(Dataset):
    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 13:
            if self.how == "python":
                time.sleep(3600)
            else:
                import ctypes

                ctypes.PyDLL(None).sleep(3600)
        return index


@pytest.mark.parametrize("how", ["python", "C with the interpreter locked"])
def test_the_parent_can_read_the_sample_and_stack_of_a_worker(how):
    iterator = iter(unjam.DataLoader(Stuck(how), batch_size=5, num_workers=1))
    next(iterator), next(iterator)

    def on_index_13(pool=iterator._pool):
        heartbeat = pool.heartbeat(0)
        return (heartbeat.batch, heartbeat.position, heartbeat.stage) == (2, 3, Stage.GETITEM)

    wait_until(on_index_13)

    # the page is written before the sample begins; its line is known when the stack says so
    def stack(handle=iterator._pool._handles[0]):
        os.kill(handle.process.pid, signal.SIGUSR2)
        text = bytes(handle.stacks.view()[:4000])
        return b"in __getitem__" in text and text

    assert b"test_worker_setup.py" in wait_until(stack)
    del stack, on_index_13, iterator  # the worker is stuck for an hour; stopping it does not wait for that


def test_the_stack_of_a_fatal_signal_is_kept():
    class Crashes(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            import ctypes

            return ctypes.string_at(0)

    iterator = iter(unjam.DataLoader(Crashes(), num_workers=1))
    handle = iterator._pool._handles[0]
    with pytest.raises(
        RuntimeError, match=r"Segmentation fault \(SIGSEGV\) while loading sample 0 \(batch 0, worker 0\)"
    ) as caught:
        next(iterator)
    assert "in __getitem__" in str(caught.value)
    assert b"Segmentation fault" in bytes(handle.stacks.view()[:200])
    del handle


def test_the_stack_of_a_fatal_signal_is_kept_if_a_library_handles_it(tmp_path):
    """The training process had enabled faulthandler, and a library replaced its handlers; a forked worker inherits both."""
    done = script(
        tmp_path,
        """
        import ctypes, faulthandler, signal, unjam
        class Crashes:
            def __len__(self): return 4
            def __getitem__(self, index): return ctypes.string_at(0)
        faulthandler.enable()
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        try:
            list(unjam.DataLoader(Crashes(), num_workers=1, multiprocessing_context="fork"))
        except RuntimeError as error:
            print(error)
        """,
    )
    assert "in __getitem__" in done.stdout, done.stdout


def test_ctrl_c_does_not_reach_user_code_in_workers():
    def send():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return "still here"

    assert ask(send) == "still here"


def test_loaders_can_be_nested():
    def inner():
        return [batch.tolist() for batch in unjam.DataLoader(range(4), batch_size=2, num_workers=1)]

    assert ask(inner) == [[0, 1], [2, 3]]
