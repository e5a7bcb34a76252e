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
import time
from collections import deque
from typing import Any

import torch

from unjam.errors import place
from unjam.loader.engine.deadlines import LOOK_AROUND
from unjam.loader.engine.policy import Decision
from unjam.loader.ship import shipping
from unjam.loader.ship.process_state import use_tracker
from unjam.loader.ship.reachable_modules import is_installed_module
from unjam.loader.transport import classes, collating
from unjam.loader.transport.channel import Channel, ChannelClosed, Envelope
from unjam.loader.transport.packing import Packer
from unjam.loader.transport.slots import Arena
from unjam.loader.transport.status_page import ARMED, Page, Stage
from unjam.loader.worker import messages, thread_limits
from unjam.loader.worker.batch_recovery import Mender
from unjam.loader.worker.exceptions import record
from unjam.loader.worker.fetching import Fetcher, make_fetcher
from unjam.loader.worker.job import Emptied, Failed, Interrupted, IterableEnded, Job, Surrender
from unjam.loader.worker.sample_recovery import Identity
from unjam.loader.worker.spec import Cargo, WorkerSpec, seed_batch
from unjam.loader.worker.transforms import Transforms
from unjam.system import memory
from unjam.system import torch_private as private

STACKS_BYTES = 1 << 18
STACK_SIGNAL = signal.SIGUSR2


def run(sock: socket.socket | int, cargo: Cargo | None) -> None:
    """Be a worker. `cargo` is given where the worker inherited it; otherwise it comes with the start frame."""
    channel = Channel(socket.socket(fileno=sock) if isinstance(sock, int) else sock, messages.LANGUAGE)
    fds: list[int] = []
    try:
        first = _await(channel)
        while isinstance(first.message, messages.Descriptors):
            fds += first.fds
            first = _await(channel)
    except ChannelClosed:
        return
    begin: messages.Begin = first.message
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
        # it stays open: whoever looks at this process from outside can read the heartbeat by its descriptor
        self._page = Page(page_fd)
        self._arena = Arena(self._page, self._announce)
        self._packer = Packer(self._arena, by_value=spec.by_value)
        self._fetcher: Fetcher | None = None
        self._mender: Mender | None = None
        self._cargo: Cargo | None = None
        # what came while the worker waited for a verdict
        self._backlog: deque[Envelope] = deque()
        self._shared_rng = torch.Generator()
        self._exhausted = False
        self._handler: Any = None
        self._transforms: Transforms | None = None
        self._modules: set[str] = set()
        self._tolerant: Any = None

    # -- preparing ---------------------------------------------------------------------------------------------------

    def prepare(self, begin: messages.Begin, cargo: Cargo | None, fds: list[int]) -> None:
        """Settle, load, seed, and say so; a failure is told, and the worker waits to be dismissed."""
        self._arm()
        self._page.beat(Stage.LOADING, -1)
        self._modules = set(sys.modules)
        try:
            if begin.has_tracker:
                use_tracker(fds.pop(1))
            if begin.home is not None:
                begin.home.settle(self._spec.worker, adopted=begin.adopted)
            # one that was forked from a template has nothing of the training process's
            self._settle(adopted=begin.adopted, forked=cargo is not None and not begin.adopted)
            if cargo is None:
                assert begin.manifest is not None, "a worker without a cargo needs a manifest"
                cargo = shipping.receive(fds[0], begin.manifest, fds[1:])
                os.close(fds[0])
            classes.remember()
            self._page.beat(Stage.INIT, -1)
            loaded = time.monotonic_ns()
            self._initialise(cargo)
            now = time.monotonic_ns()
        except BaseException as error:  # noqa: BLE001 - user code runs in here; whatever it raises is the answer
            self._tell_unready(error, "before its first sample")
            return
        self._tell_imports()
        self._tell(messages.Prepared(now, now - loaded))

    def _arm(self) -> None:
        """Make stacks readable without ptrace, from the first moment on."""
        faulthandler.enable(self._stacks, all_threads=True)
        faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=True)
        self._page.words[ARMED] = 1
        self._handler = signal.getsignal(STACK_SIGNAL)

    def _settle(self, *, adopted: bool, forked: bool) -> None:
        """Keep Ctrl-C for the parent, cap the threads."""
        # a handler, not SIG_IGN: programs that the dataset runs keep the default
        signal.signal(signal.SIGINT, lambda *_: None)
        if self._spec.threads is not None:
            # the fork server sets the variables before it loads anything; nobody else does
            thread_limits.cap_threads(self._spec.threads, loaded_elsewhere=not adopted, forked=forked)

    def _initialise(self, cargo: Cargo) -> None:
        spec = self._spec
        self._cargo = cargo
        for kind, function in cargo.collate_additions.items():
            private.default_collate_fn_map[kind] = function
        self._tolerant = collating.install(self._arena, strict=collating.is_default(cargo.collate_fn))
        seed = spec.seed_everything()
        self._reseed(spec.shared_seed)
        private.set_worker_info(id=spec.worker, num_workers=spec.workers, seed=seed, dataset=cargo.dataset)
        if cargo.worker_init_fn is not None:
            cargo.worker_init_fn(spec.worker)
        if spec.profile:
            roots = {"dataset": cargo.dataset, "collate_fn": cargo.collate_fn}
            self._transforms = Transforms(roots)
        self._fetcher = self._new_fetcher()

    def _reseed(self, shared_seed: int | None) -> None:
        cargo = self._cargo
        if cargo is not None and isinstance(cargo.dataset, private.IterDataPipe) and shared_seed is not None:
            self._shared_rng.manual_seed(shared_seed)
            cargo.dataset = private.apply_random_seed(cargo.dataset, self._shared_rng)

    def _new_fetcher(self) -> Fetcher:
        cargo, spec = self._cargo, self._spec
        assert cargo is not None, "not prepared"
        identity = Identity(spec.worker, spec.base_seed, spec.iterable, spec.auto_collation, spec.by_value)
        plain = collating.is_default(cargo.collate_fn)
        self._mender = Mender(spec.policy, identity, cargo.dataset, self, tolerant=self._tolerant if plain else None)
        return make_fetcher(
            cargo.dataset,
            cargo.collate_fn,
            iterable=spec.iterable,
            batched=spec.auto_collation,
            drop_last=spec.drop_last,
            pulse=self._page,
            mender=self._mender,
        )

    # -- serving -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Make batches until told to leave."""
        while not self._page.stop_asked:
            self._page.beat(Stage.IDLE, -1)
            envelope = self._backlog.popleft() if self._backlog else _await(self._channel)
            message = envelope.message
            if isinstance(message, messages.Task):
                if self._fetcher is not None and not self._exhausted:
                    if message.seed is not None:
                        seed_batch(message.seed)
                    self._make(_job(message, envelope.data, batched=self._spec.auto_collation))
            elif isinstance(message, messages.Resume):
                self._resume(message)
            elif isinstance(message, messages.Carry):
                self._carry(message)
            elif isinstance(message, messages.Leave):
                break
        self._page.beat(Stage.LEAVING, -1)
        self._tell(messages.Farewell())

    def _make(self, job: Job) -> None:
        assert self._fetcher is not None, "not prepared"
        assert self._mender is not None, "not prepared"
        if signal.getsignal(STACK_SIGNAL) is not self._handler:
            self._page.words[ARMED] = 0  # user code has the signal now: it must not be sent
        self._arena.open()
        try:
            batch = self._fetcher.fetch(job)
            self._page.beat(Stage.PICKLE, job.batch)
            job.stamps.append(time.monotonic_ns())
            try:
                packed = self._packer.pack(batch)
            except BaseException as error:  # noqa: BLE001 - the user's own reductions run in here
                self._mender.whole(job, "pickle", error)
                raise Emptied from None
        except Interrupted:
            return
        except IterableEnded as end:
            self._exhausted = True
            self._tell(messages.Drained(job.batch, end.cut_short), job.told())
            return
        except (Surrender, Emptied) as outcome:
            self._arena.discard()
            lost = isinstance(outcome, Surrender)
            self._tell(messages.Raised(job.batch, loading=False) if lost else messages.Emptied(job.batch), job.told())
            return
        except BaseException as error:  # noqa: BLE001 - a failure that could not even be described is still told
            self._arena.discard()
            self._tell(messages.Raised(job.batch, loading=False), pickle.dumps([self._bare(error, job.number).dumps()]))
            return
        finally:
            batch = None
        retired, self._arena.retired = tuple(self._arena.retired), []
        job.stamps.append(time.monotonic_ns())
        self._page.beat(Stage.SEND, job.batch)
        made = messages.Made(
            job.batch,
            packed.stream,
            packed.stream_at,
            packed.buffers,
            packed.filling,
            retired,
            job.samples,
            job.times(),
            job.told(),
            b"" if self._transforms is None else self._transforms.take(),
        )
        if len(sys.modules) != len(self._modules):
            self._tell_imports()  # before the batch, which may be the last
        self._tell(made, packed.data)

    def _resume(self, message: messages.Resume) -> None:
        self._exhausted = False
        self._page.beat(Stage.INIT, -1)  # the dataset's __iter__ may take its time: this is no waiting for work
        try:
            self._reseed(message.shared_seed)
            self._fetcher = self._new_fetcher()
        except BaseException as error:  # noqa: BLE001 - the dataset's __iter__ runs in here
            self._fetcher = None
            self._tell_unready(error, "at the beginning of an epoch")

    # -- what the mender needs ---------------------------------------------------------------------------------------

    @property
    def words(self) -> Any:
        """See `Surroundings`."""
        return self._page.words

    def beat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """See `Surroundings`."""
        self._page.beat(stage, batch, position)

    def mention(self, text: str) -> None:
        """See `Surroundings`."""
        self._tell(messages.Mentions(), text.encode())

    def start_over(self) -> None:
        """See `Surroundings`."""
        self._arena.discard()
        self._arena.open()

    def ask(self, job: Job, failed: Failed) -> Decision:
        """See `Surroundings`. The user's function lives in the parent, which may be busy training."""
        was = self._page.read()
        self._page.beat(Stage.ASKING, job.batch, failed.position)
        self._tell(messages.Asks(job.batch), failed.dumps())
        while True:
            if self._page.stop_asked:
                raise Interrupted
            envelope = _await(self._channel)
            match envelope.message:
                case messages.Verdict(decision):
                    self._page.beat(was.stage, was.batch, was.position)
                    return Decision(decision)
                case messages.Carry() as carry:
                    self._carry(carry)
                case messages.Leave():
                    self._backlog.append(envelope)
                    raise Interrupted
                case _:
                    self._backlog.append(envelope)

    # -- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, message: object, data: bytes | memoryview = b"", fds: tuple[int, ...] = ()) -> None:
        """Send, for as long as the parent needs to read; it may be busy training."""
        self._channel.post(message, data, fds)
        while not self._channel.flush():
            if self._page.stop_asked:
                raise ChannelClosed("asked to stop")
            self._channel.poll(LOOK_AROUND.seconds, write=True)

    def _tell_imports(self) -> None:
        """Name the installed modules that were imported since the last time, so that the fork server can do it next time."""
        loaded = list(sys.modules.items())
        names = [name for name, module in loaded if name not in self._modules and is_installed_module(module)]
        self._modules = {name for name, _ in loaded}
        if names:
            self._tell(messages.Imported(), "\n".join(names).encode())

    def _tell_unready(self, error: BaseException, when: str) -> None:
        loading = self._page.read().stage is Stage.LOADING
        failed = self._bare(error, None, f"raised {when}")
        self._tell(messages.Raised(None, loading=loading), pickle.dumps([failed.dumps()]))

    def _bare(self, error: BaseException, batch: int | None, *notes: str) -> Failed:
        """A failure of no sample in particular."""
        worker = self._spec.worker
        taken = record(error, (place(None, batch, worker), *notes), by_value=self._spec.by_value)
        seconds = self._page.read().seconds()
        stage = "init" if batch is None else "getitem"
        return Failed(-1, None, batch, worker, stage, seconds, taken, pid=os.getpid(), decision=Decision.RAISE)

    def _carry(self, message: messages.Carry) -> None:
        data = self._arena.read_back(message.slot)
        self._tell(messages.Carried(message.slot, message.generation), data)

    def _announce(self, slot: int, size: int, fd: int) -> None:
        self._tell(messages.NewSlot(slot, size), fds=(fd,))


def _job(task: messages.Task, data: bytes, *, batched: bool) -> Job:
    index, spares = pickle.loads(data) if task.with_spares else (pickle.loads(data), ())
    return Job(task.batch, task.number, index, spares, task.verdicts or {}, batched=batched)


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
