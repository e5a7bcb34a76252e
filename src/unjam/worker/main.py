"""A worker's life: take the start frame, settle, load the dataset, make batches until told to leave.

    starting -> loading -> init -> idle <-> (getitem -> collate -> pickle -> send) -> leaving

Everything happens in the main thread. Pickling too: a batch or an exception that cannot be pickled is an answer like
any other, never a message lost in a background thread.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterDataPipe, _utils
from torch.utils.data.graph_settings import apply_random_seed

from unjam.engine.deadlines import LOOK_AROUND
from unjam.transport import classes, collating, memory
from unjam.transport.channel import Channel, ChannelClosed, Envelope
from unjam.transport.packing import Packer
from unjam.transport.page import Page, Stage
from unjam.transport.slots import Arena
from unjam.worker import hygiene, messages, shipping
from unjam.worker.exceptions import ExceptionRecord, record
from unjam.worker.fetching import Fetcher, Interrupted, IterableEnded, make_fetcher
from unjam.worker.settings import is_installed
from unjam.worker.spec import Cargo, WorkerSpec
from unjam.worker.world import World, use_tracker

STACKS_BYTES = 1 << 18
STACK_SIGNAL = signal.SIGUSR2


@dataclass(frozen=True, slots=True)
class Begin:
    """The first frame: who the worker is. `home` and `manifest` are None for a worker forked from the parent.

    Descriptors: the shared page, the memory for stacks, then, where there is a manifest, the payload, and the parent's
    resource tracker if `has_tracker`, then those that the payload refers to. `adopted`: born of unjam's own fork server.
    """

    spec: WorkerSpec
    home: World | None
    manifest: shipping.Manifest | None
    has_tracker: bool
    adopted: bool


# every message between a parent and its worker
LANGUAGE = (
    Begin,
    messages.Descriptors,
    messages.Task,
    messages.Resume,
    messages.Carry,
    messages.Leave,
    messages.Prepared,
    messages.NewSlot,
    messages.Made,
    messages.Carried,
    messages.Raised,
    messages.Drained,
    messages.Farewell,
)


def run(sock: socket.socket, cargo: Cargo | None) -> None:
    """Be a worker. `cargo` is given where the worker inherited it; otherwise it comes with the start frame."""
    channel = Channel(sock, LANGUAGE)
    fds: list[int] = []
    try:
        first = _await(channel)
        while isinstance(first.message, messages.Descriptors):
            fds += first.fds
            first = _await(channel)
    except ChannelClosed:
        return
    begin: Begin = first.message
    fds += first.fds
    worker = Worker(begin.spec, channel, fds[:2])
    try:
        worker.prepare(begin, cargo, fds[2:])
        worker.serve()
    except ChannelClosed:
        pass  # the parent let go of us


def _await(channel: Channel) -> Envelope:
    """The next frame; the waits are bounded and the parent's death ends this process by the lifeline."""
    while not channel.arrived:
        if channel.closed:
            raise ChannelClosed("the parent closed the channel")
        # there is nearly always something: look before waiting
        channel.receive()
        if not channel.arrived and not channel.closed:
            channel.poll(LOOK_AROUND.seconds)
    return channel.arrived.popleft()


class Worker:
    """The state of one worker process."""

    def __init__(self, spec: WorkerSpec, channel: Channel, fds: list[int]) -> None:
        self._spec = spec
        self._channel = channel
        page_fd, self._stacks = fds
        self._page = Page(page_fd)
        os.close(page_fd)
        self._arena = Arena(self._page, self._announce)
        self._packer = Packer(self._arena, by_value=spec.by_value)
        self._fetcher: Fetcher | None = None
        self._cargo: Cargo | None = None
        self._shared_rng = torch.Generator()
        self._exhausted = False

    # -- preparing ---------------------------------------------------------------------------------------------------

    def prepare(self, begin: Begin, cargo: Cargo | None, fds: list[int]) -> None:
        """Settle, load, seed, and say so; a failure is told, and the worker waits to be dismissed."""
        self._page.beat(Stage.LOADING, -1)
        known = set(sys.modules)
        try:
            if begin.has_tracker:
                use_tracker(fds.pop(1))
            if begin.home is not None:
                begin.home.settle(self._spec.worker, adopted=begin.adopted)
            self._arm(forked=begin.home is None)
            if cargo is None:
                assert begin.manifest is not None, "a worker without a cargo needs a manifest"
                cargo = shipping.receive(fds[0], begin.manifest, fds[1:])
                os.close(fds[0])
            classes.remember()
            self._page.beat(Stage.INIT, -1)
            self._initialise(cargo)
        except BaseException as error:  # noqa: BLE001 - user code runs in here; whatever it raises is the answer
            self._tell_raised(None, error, f"raised in worker {self._spec.worker} before its first sample")
            return
        self._tell(messages.Prepared(_packages(set(sys.modules) - known)))

    def _arm(self, *, forked: bool) -> None:
        """Make stacks readable without ptrace, keep Ctrl-C for the parent, cap the threads."""
        faulthandler.enable(self._stacks, all_threads=True)
        faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=True)
        # a handler, not SIG_IGN: programs that the dataset runs keep the default
        signal.signal(signal.SIGINT, lambda *_: None)
        if self._spec.threads is not None:
            hygiene.cap_threads(self._spec.threads, loaded_elsewhere=forked)
        collating.install(self._arena)

    def _initialise(self, cargo: Cargo) -> None:
        spec = self._spec
        self._cargo = cargo
        for kind, function in cargo.collate_additions.items():
            _utils.collate.default_collate_fn_map[kind] = function
        seed = spec.seed_everything()
        self._reseed(spec.shared_seed)
        _utils.worker._worker_info = _utils.worker.WorkerInfo(  # noqa: SLF001 - what get_worker_info() returns
            id=spec.worker, num_workers=spec.workers, seed=seed, dataset=cargo.dataset
        )
        if cargo.worker_init_fn is not None:
            cargo.worker_init_fn(spec.worker)
        self._fetcher = self._new_fetcher()

    def _reseed(self, shared_seed: int | None) -> None:
        cargo = self._cargo
        if cargo is not None and isinstance(cargo.dataset, IterDataPipe) and shared_seed is not None:
            self._shared_rng.manual_seed(shared_seed)
            cargo.dataset = apply_random_seed(cargo.dataset, self._shared_rng)

    def _new_fetcher(self) -> Fetcher:
        cargo, spec = self._cargo, self._spec
        assert cargo is not None, "not prepared"
        return make_fetcher(
            cargo.dataset,
            cargo.collate_fn,
            iterable=spec.iterable,
            batched=spec.auto_collation,
            drop_last=spec.drop_last,
            pulse=self._page,
        )

    # -- serving -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Make batches until told to leave."""
        while not self._page.stop_asked:
            self._page.beat(Stage.IDLE, -1)
            envelope = _await(self._channel)
            message = envelope.message
            if isinstance(message, messages.Task):
                if self._fetcher is not None and not self._exhausted:
                    self._make(message, pickle.loads(envelope.data))
            elif isinstance(message, messages.Resume):
                self._resume(message)
            elif isinstance(message, messages.Carry):
                data = self._arena.read_back(message.slot)
                self._tell(messages.Carried(message.slot, message.generation), data)
            elif isinstance(message, messages.Leave):
                break
        self._page.beat(Stage.LEAVING, -1)
        self._tell(messages.Farewell())

    def _make(self, task: messages.Task, index: Any) -> None:
        assert self._fetcher is not None, "not prepared"
        self._arena.open()
        try:
            batch = self._fetcher.fetch(task.batch, index)
            self._page.beat(Stage.PICKLE, task.batch)
            packed = self._packer.pack(batch)
        except Interrupted:
            return
        except IterableEnded:
            self._exhausted = True
            self._tell(messages.Drained(task.batch))
            return
        except BaseException as error:  # noqa: BLE001 - user code runs in here; whatever it raises is the answer
            where = self._where(task, index)
            self._arena.discard()
            self._tell_raised(task.batch, error, where)
            return
        finally:
            batch = None
        retired, self._arena.retired = tuple(self._arena.retired), []
        made = messages.Made(task.batch, packed.stream, packed.stream_at, packed.buffers, packed.filling, retired)
        self._page.beat(Stage.SEND, task.batch)
        self._tell(made, packed.data)

    def _resume(self, message: messages.Resume) -> None:
        self._exhausted = False
        try:
            self._reseed(message.shared_seed)
            self._fetcher = self._new_fetcher()
        except BaseException as error:  # noqa: BLE001 - the dataset's __iter__ runs in here
            self._fetcher = None
            self._tell_raised(None, error, f"raised in worker {self._spec.worker} at the beginning of an epoch")

    # -- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, message: object, data: bytes | memoryview = b"", fds: tuple[int, ...] = ()) -> None:
        """Send, for as long as the parent needs to read; it may be busy training."""
        self._channel.post(message, data, fds)
        while not self._channel.flush():
            if self._page.stop_asked:
                raise ChannelClosed("asked to stop")
            self._channel.poll(LOOK_AROUND.seconds, write=True)

    def _tell_raised(self, batch: int | None, error: BaseException, where: str) -> None:
        taken: ExceptionRecord = record(error, where, by_value=self._spec.by_value)
        self._tell(messages.Raised(batch, loading=self._page.read().stage is Stage.LOADING), pickle.dumps(taken))

    def _announce(self, slot: int, size: int, fd: int) -> None:
        self._tell(messages.NewSlot(slot, size), fds=(fd,))

    def _where(self, task: messages.Task, index: Any) -> str:
        beat = self._page.read()
        place = f"batch {task.number}, worker {self._spec.worker}, pid {os.getpid()}"
        if beat.stage is not Stage.GETITEM:
            return f"while it {'collated' if beat.stage is Stage.COLLATE else 'pickled'} the samples of {place}"
        if self._spec.iterable:
            return f"at sample {beat.position} of {place}"
        if not self._spec.auto_collation:
            return f"sample {index!r} ({place})"
        try:
            return f"sample {index[beat.position]!r} ({place})"
        except Exception:  # noqa: BLE001 - an index of the user's own class may not support this
            return f"one of the samples of {place}"


def _packages(modules: set[str]) -> tuple[str, ...]:
    """The installed top-level packages among modules that were imported here."""
    found = set()
    for name in {module.partition(".")[0] for module in modules}:
        path = getattr(sys.modules.get(name), "__file__", None)
        if path and is_installed(path) and not name.startswith("_"):
            found.add(name)
    return tuple(sorted(found))


def warm_up() -> None:
    """Import and touch, once in the fork server, what every worker would import and touch in its first milliseconds."""
    WorkerSpec(0, 1, False, True, False, 0, None, 1, True).seed_everything()  # noqa: FBT003 - all of it is thrown away
    collating.additions()


def make_start_memory() -> tuple[int, int]:
    """Descriptors of a new worker's page and of the memory for its stacks."""
    page = memory.create(4096, "page")
    try:
        return page, memory.create(STACKS_BYTES, "stacks")
    except BaseException:
        os.close(page)
        raise
