"""What users see besides the loader itself: `install`, the command line, `env`, old pickles, names."""

from __future__ import annotations

import inspect
import json
import re
import typing
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset
from typer.testing import CliRunner

import unjam
from support import python
from unjam.cli import app
from unjam.loader.iterator import InlineIterator, WorkersIterator
from unjam.loader.options import COMMAND_LINE_OPTIONS, DEFAULTS, LoaderOptions

SOURCE = Path(unjam.__file__).parent
TORCH = torch.utils.data.DataLoader


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("five")
        return torch.tensor(index)


@pytest.fixture
def uninstalled():
    """Torch's loader is torch's own after the test, also where the test put another patch over ours."""
    before = {name: vars(TORCH)[name] for name in ("_get_iterator", "__iter__")}
    yield
    unjam.uninstall()
    for name, function in before.items():
        setattr(TORCH, name, function)


# -- install ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_install_can_be_undone(workers, uninstalled, capfd):
    before = {name: vars(TORCH).get(name) for name in ("_get_iterator", "__iter__")}
    unjam.install(on_error="skip")
    loader = TORCH(Numbers(), batch_size=4, num_workers=workers)
    assert sorted(int(x) for batch in loader for x in batch) == [n for n in range(16) if n != 5]
    assert type(loader) is TORCH
    assert isinstance(iter(loader), WorkersIterator if workers else InlineIterator)
    unjam.uninstall()
    assert {name: vars(TORCH).get(name) for name in before} == before
    assert "1 with ValueError: five" in capfd.readouterr().err
    with pytest.raises(ValueError, match="five"):
        list(TORCH(Numbers()))


def test_install_works_before_torch_is_imported(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import unjam\n"
        "unjam.install(on_error='skip', summary=False)\n"
        "import torch.utils.data\n"
        "class Numbers(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return 1 // (i - 3)\n"
        "print(sum(len(b) for b in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1)))\n"
    )
    done = python([str(program)], timeout=110)
    assert done.stdout == "7\n", done.stderr
    assert "-- unjam:" not in done.stderr


def test_install_rejects_bad_options():
    with pytest.raises(TypeError, match="did you mean 'retries'"):
        unjam.install(retrys=3)
    with pytest.raises(ValueError, match="observe"):
        unjam.install(observe=True, on_error="skip")
    with pytest.raises(ValueError, match="on_error should be"):
        unjam.install(on_error="drop")
    assert "unjam" not in inspect.getmodule(TORCH._get_iterator).__name__


@pytest.mark.parametrize(
    ("options", "meant"),
    [({"num_worker": 2}, "num_workers"), ({"shuffel": True}, "shuffle"), ({"batchsize": 4}, "batch_size"), ({"prefetch": 2}, "prefetch_factor"),
     ({"persistant_workers": True}, "persistent_workers"), ({"on_errors": "skip"}, "on_error")],
)  # fmt: skip
def test_mistyped_options_suggest_the_right_name(options, meant):
    with pytest.raises(TypeError, match=f"did you mean '{meant}'"):
        unjam.DataLoader(range(8), **options)


@pytest.mark.parametrize("number", [None, 2.0, float("nan"), [2]])
def test_invalid_num_workers_is_rejected(number):
    with pytest.raises(TypeError, match="num_workers should be a number"):
        unjam.DataLoader([1, 2, 3], num_workers=number)


@pytest.mark.parametrize("number", ["Auto", "AUTO", "atuo"])
def test_misspelt_auto_is_rejected_with_a_suggestion(number):
    with pytest.raises(ValueError, match=r"num_workers.*did you mean 'auto'"):
        unjam.DataLoader(range(8), num_workers=number)
    with pytest.raises(ValueError, match="num_workers"):
        unjam.DataLoader(range(8), num_workers="many")


def test_uninstalling_keeps_a_foreign_patch(uninstalled, monkeypatch):
    unjam.install(summary=False)
    ours = TORCH.__iter__

    def theirs(self):
        return ours(self)

    monkeypatch.setattr(TORCH, "__iter__", theirs)
    with pytest.warns(unjam.UnjamWarning, match="DataLoader.__iter__"):
        unjam.uninstall()
    assert TORCH.__iter__ is theirs


@pytest.mark.frameworks
def test_a_loader_rebuilt_by_accelerate_warns(uninstalled):
    accelerate = pytest.importorskip("accelerate", reason="pip install unjam[frameworks]")
    accelerator = accelerate.Accelerator(cpu=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        accelerator.prepare(unjam.DataLoader(Numbers(), batch_size=4))
        line = inspect.currentframe().f_lineno - 1
    (mine,) = [one for one in said if one.category is unjam.UnjamWarning]
    assert (mine.filename, mine.lineno) == (__file__, line)
    unjam.install(summary=False, on_error="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("error", unjam.UnjamWarning)
        prepared = accelerator.prepare(unjam.DataLoader(Numbers(), batch_size=4))
    assert sum(len(batch) for batch in prepared) == 15


# -- the command line ------------------------------------------------------------------------------


def test_help_lists_commands_in_order():
    said = CliRunner().invoke(app, ["--help"]).output
    places = [said.index(f" {name} ") for name in ("check", "why", "run", "tune", "errors", "explain", "rules", "env")]
    assert places == sorted(places)


@pytest.mark.parametrize("command", ["check", "tune", "run"])
def test_mistyped_command_options_suggest_the_right_name(command):
    done = CliRunner().invoke(app, [command, "--jsn", "x", "train.py"])
    assert done.exit_code == 2
    assert "--json" in done.output


def test_every_loader_option_is_a_flag_of_run():
    said = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    assert all(f"--{name.replace('_', '-')}" in said for name in COMMAND_LINE_OPTIONS)
    assert set(DEFAULTS) - set(COMMAND_LINE_OPTIONS) == {"on_device"}  # a function has no words


def test_program_options_are_passed_through(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, torch.utils.data\n"
        "assert sys.argv[1:] == ['--profile', '--json', 'x', '--budget=3', '-m', 'y'], sys.argv\n"
        "for batch in torch.utils.data.DataLoader(list(range(8)), batch_size=4): pass\n"
    )
    words = ["--profile", "--json", "x", "--budget=3", "-m", "y"]
    done = python(["-m", "unjam", "check", "--budget", "8", "--json", "-", str(program), *words], timeout=110)  # fmt: skip
    assert json.loads(done.stdout)["findings"] == [], done.stderr


def test_env(tmp_path):
    out = tmp_path / "env.json"
    done = CliRunner().invoke(app, ["env", "--json", str(out)])
    assert done.exit_code == 0
    found = json.loads(out.read_text())
    assert found["schema"] == 1
    assert found["unjam"] == unjam.__version__
    for name in ("shared_memory", "open_files", "memory_available", "processors", "start_method", "thread_pools"):
        assert found[name]
        assert name.replace("_", " ") in done.output


# -- names -----------------------------------------------------------------------------------------


def test_every_public_name_exists():
    assert set(dir(unjam)) == set(unjam.__all__)
    for name in unjam.__all__:
        assert getattr(unjam, name) is not None
    assert issubclass(unjam.UnjamWarning, UserWarning)


def test_loader_options_have_one_definition():
    parameters = inspect.signature(unjam.DataLoader.__init__).parameters
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS
    assert all(f"{name}: " in unjam.DataLoader.__doc__ for name in DEFAULTS)
    assert LoaderOptions().as_dict() == DEFAULTS


def test_file_names_in_the_source_exist():
    """`unjam why` knows our own calls by their files."""
    for path in SOURCE.rglob("*.py"):
        for name in re.findall(r"[\"'](unjam/[\w/]+\.py)[\"']", path.read_text()):
            assert (SOURCE.parent / name).is_file(), f"{path}: {name}"


# -- epochs after something went wrong -------------------------------------------------------------


def test_a_batch_pending_when_the_sampler_failed_is_dropped():
    class Sampler:
        epoch = 0

        def __iter__(self):
            first = self.epoch * 100
            Sampler.epoch += 1
            for n in range(8):
                if first == 0 and n == 6:
                    raise KeyError("sampler")
                yield first + n

        def __len__(self):
            return 8

    class Plain(Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            if index == 104:
                raise ValueError("bad")
            return index

    loader = unjam.DataLoader(Plain(), batch_size=None, sampler=Sampler(), num_workers=1, persistent_workers=True)
    with pytest.raises(KeyError, match="sampler"):
        list(loader)
    found, iterator = [], iter(loader)
    while True:
        try:
            found.append(next(iterator))
        except ValueError:
            found.append("failed")
        except StopIteration:
            break
    assert found == [100, 101, 102, 103, "failed", 105, 106, 107]
    iterator._shutdown_workers()


def test_an_interrupted_worker_start_is_repeated_in_the_next_epoch(monkeypatch):
    import os
    import signal

    from unjam.loader.pool.process_pool import ProcessPool

    loader = unjam.DataLoader(list(range(64)), batch_size=4, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    launcher = iterator._pool._launcher
    launch = launcher.launch

    def interrupted(numbers):
        monkeypatch.setattr(launcher, "launch", launch)
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "launch", interrupted)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    with pytest.raises(KeyboardInterrupt):
        list(iterator)
    assert isinstance(iterator._pool, ProcessPool)
    assert sum(len(batch) for batch in loader) == 64
    iterator._shutdown_workers()


def test_the_error_log_path_is_resolved_once(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    loader = unjam.DataLoader(Numbers(), batch_size=4, error_log="logs/errors.jsonl", on_error="skip")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert sum(len(batch) for batch in loader) == 15
    assert (tmp_path / "logs" / "errors.jsonl").exists()
    with pytest.raises(FileNotFoundError, match="no such"):
        unjam.DataLoader(Numbers(), error_log="no such/errors.jsonl")


def test_a_sampler_that_closes_its_loader_ends_the_epoch():
    class Closes:
        def __iter__(self):
            yield from range(6)
            iterator._shutdown_workers()
            yield from range(6, 64)

        def __len__(self):
            return 64

    loader = unjam.DataLoader(list(range(64)), batch_size=2, sampler=Closes(), num_workers=1)
    iterator = iter(loader)
    assert len(list(iterator)) <= 3


# -- workers that become more between two epochs ---------------------------------------------------


def test_a_size_chosen_at_the_end_of_an_epoch_applies_to_the_next():
    from unjam.loader.engine.size_search import Setting

    loader = unjam.DataLoader(list(range(64)), batch_size=4, num_workers="auto", persistent_workers=True)
    assert sum(len(batch) for batch in loader) == 64
    iterator = loader._iterator
    search = loader._state.sizer.search
    search.setting = Setting(min(search.limits.workers, search.setting.workers + 2), search.setting.depth)
    assert sum(len(batch) for batch in loader) == 64
    assert sum(iterator._driver.pool.pid(n) is not None for n in range(search.limits.workers)) >= search.setting.workers
    iterator._shutdown_workers()


def test_a_late_fork_server_reply_is_not_taken_for_the_next_one(tmp_path):
    """Ctrl-C while the fork server imports something."""
    program = tmp_path / "program.py"
    (tmp_path / "slow_library.py").write_text("import time; time.sleep(1.5)")
    program.write_text(
        "import signal, socket, sys\n"
        "from unjam.loader.pool import fork_server\n"
        "server = fork_server.shared()\n"
        "server.preload(['json'])\n"
        "def ring(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.4)\n"
        "try:\n"
        "    server.preload(['slow_library'])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "ends = [socket.socketpair() for _ in range(3)]\n"
        "for number, (_, theirs) in enumerate(ends):\n"
        "    (worker,) = server.fork([(number, theirs.fileno())])\n"
        "    with open(f'/proc/{worker.pid}/stat') as stat:\n"
        "        print(int(stat.read().rpartition(')')[2].split()[1]) == server.pid, len(server._channel.arrived))\n"
        "fork_server.shut_down()\n"
    )
    done = python([str(program)], timeout=110)
    assert done.stdout.splitlines() == ["interrupted", *["True 0"] * 3], done.stderr


def test_repr_shows_the_dataset_and_what_differs_from_the_defaults():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    rows = torch.utils.data.TensorDataset(torch.zeros(5000, 1))
    loader = unjam.DataLoader(rows, 64, shuffle=True, num_workers=1, drop_last=True, on_error="skip")
    words = "<TensorDataset of 5,000>, batch_size=64, shuffle=True, num_workers=1, drop_last=True, on_error='skip'"
    assert repr(loader) == f"DataLoader({words})"
    assert (
        repr(unjam.DataLoader(Stream(), num_workers="auto")) == "DataLoader(<Stream>, batch_size=1, num_workers='auto')"
    )
    batches = torch.utils.data.BatchSampler(range(10), 5, drop_last=False)
    assert repr(unjam.DataLoader(rows, batch_sampler=batches)).startswith(
        "DataLoader(<TensorDataset of 5,000>, batch_sampler=<BatchSampler of 2>, num_workers=0"
    )
    assert repr(unjam.DataLoader(rows, on_error=keep_going)).endswith("on_error=keep_going)")
    assert "DataLoader object at" in repr(unjam.DataLoader.__new__(unjam.DataLoader)), "without __init__"


def keep_going(error):
    return "skip"


def test_tools_can_resolve_the_types_of_the_constructor():
    hints = typing.get_type_hints(unjam.DataLoader.__init__)
    assert hints["batch_size"] == int | None
