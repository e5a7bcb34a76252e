"""The worker's main loop: set up, load the dataset, make batches until asked to exit.

    starting -> loading -> init -> idle <-> (getitem -> collate -> pickle -> send) -> leaving

Everything runs in the main thread, pickling too. So a batch or an exception that cannot be pickled
is reported like any other failure and is not lost in a background thread.
"""

from __future__ import annotations

import dataclasses
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
from typing_extensions import override

from unjam.deadlines import LIVENESS_CHECK
from unjam.errors import place
from unjam.loader.engine.policy import Decision
from unjam.loader.ship import shipping
from unjam.loader.ship.process_state import use_tracker
from unjam.loader.ship.reachable_modules import is_installed_module
from unjam.loader.transport import classes, collating
from unjam.loader.transport.channel import Channel, ChannelClosed, Frame
from unjam.loader.transport.packing import Packer
from unjam.loader.transport.slots import Arena
from unjam.loader.transport.status_page import ARMED, PAGE_BYTES, Stage, StatusPage
from unjam.loader.worker import messages, thread_limits
from unjam.loader.worker.exceptions import record
from unjam.loader.worker.failure_policy import RecoveryContext
from unjam.loader.worker.fetching import Fetcher, make_fetcher
from unjam.loader.worker.job import BatchJob, Emptied, Interrupted, IterableEnded, RaiseFailure, SampleFailure
from unjam.loader.worker.sample_random import seed_generators
from unjam.loader.worker.spec import WorkerInput, WorkerSpec
from unjam.loader.worker.transforms import Transforms
from unjam.system import memory
from unjam.system import torch_private as private

STACKS_BYTES = 1 << 18
STACK_SIGNAL = signal.SIGUSR2


def run(sock: socket.socket | int, worker_input: WorkerInput | None) -> None:
    """Run a worker. `worker_input` is inherited by fork; if None, it comes with the setup message."""
    channel = Channel(socket.socket(fileno=sock) if isinstance(sock, int) else sock, messages.MESSAGE_TYPES)
    try:
        first = _await(channel)
    except ChannelClosed:
        return
    setup: messages.Setup = first.message
    worker = Worker(setup.spec, channel, first.fds[:2])
    try:
        worker.prepare(setup, worker_input, first.fds[2:])
        worker.serve()
    except ChannelClosed:
        pass  # the parent closed the channel


def _await(channel: Channel) -> Frame:
    """Return the next frame. Each wait is bounded; if the parent dies, `parent_death` kills us."""
    while not channel.arrived:
        if channel.closed:
            raise ChannelClosed("the parent closed the channel")
        # A frame is nearly always there: read before polling.
        channel.receive()
        if not channel.arrived and not channel.closed:
            channel.poll(LIVENESS_CHECK.seconds)
    return channel.arrived.popleft()


class Worker(RecoveryContext):
    """The state of one worker process."""

    def __init__(self, spec: WorkerSpec, channel: Channel, fds: list[int]) -> None:
        self._spec = spec
        self._channel = channel
        page_fd, self._stacks = fds
        # Keep it open: outside observers read the heartbeat through this descriptor.
        self._page = StatusPage(page_fd)
        self.words = self._page.words
        self.heartbeat = self._page.heartbeat
        self._arena = Arena(self._page, self._announce)
        self._packer = Packer(self._arena, by_value=spec.by_value)
        self._fetcher: Fetcher | None = None
        self._worker_input: WorkerInput | None = None
        # frames that came while we waited for a policy answer
        self._backlog: deque[Frame] = deque()
        self._shared_rng = torch.Generator()
        self._exhausted = False
        self._handler: Any = None
        self._transforms: Transforms | None = None
        self._modules: set[str] = set()
        self._tolerant: Any = None

    # -- preparing ---------------------------------------------------------------------------------------------------

    def prepare(self, setup: messages.Setup, worker_input: WorkerInput | None, fds: list[int]) -> None:
        """Set up, load, seed, and report it. After a failure, report it and wait for `Leave`."""
        self._arm()
        self._page.heartbeat(Stage.LOADING, -1)
        self._modules = set(sys.modules)
        try:
            if setup.has_tracker:
                use_tracker(fds.pop(1))
            if setup.process_state is not None:
                setup.process_state.apply_to_worker(self._spec.worker, from_fork_server=setup.from_fork_server)
            # A worker forked from a template inherits nothing from the training process.
            self._set_up_process(
                from_fork_server=setup.from_fork_server, forked=worker_input is not None and not setup.from_fork_server
            )
            if worker_input is None:
                assert setup.manifest is not None, "a worker without its input needs a manifest"
                worker_input = shipping.receive(fds[0], setup.manifest, fds[1:])
                os.close(fds[0])
            classes.remember()
            self._page.heartbeat(Stage.INIT, -1)
            loaded = time.monotonic_ns()
            self._initialise(worker_input)
            now = time.monotonic_ns()
        except BaseException as error:  # noqa: BLE001 - user code runs here; report what it raises
            self._send_not_ready(error, "before its first sample")
            return
        self._send_imports()
        self._send(messages.Ready(now, now - loaded))

    def _arm(self) -> None:
        """Make stacks readable without ptrace, as early as possible."""
        faulthandler.disable()  # if it was enabled, a library may have replaced its handlers, and `enable` would not notice
        faulthandler.enable(self._stacks, all_threads=True)
        faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=True)
        self._page.words[ARMED] = 1
        self._handler = signal.getsignal(STACK_SIGNAL)

    def _set_up_process(self, *, from_fork_server: bool, forked: bool) -> None:
        """Ignore Ctrl-C, which only the parent handles, and limit threads."""
        # Not SIG_IGN: programs that the dataset starts would inherit that.
        signal.signal(signal.SIGINT, lambda *_: None)
        if self._spec.threads is not None:
            # Only the fork server sets the variables before it loads libraries.
            thread_limits.cap_threads(self._spec.threads, loaded_elsewhere=not from_fork_server, forked=forked)

    def _initialise(self, worker_input: WorkerInput) -> None:
        spec = self._spec
        self._worker_input = worker_input
        for kind, function in worker_input.collate_additions.items():
            private.default_collate_fn_map[kind] = function
        plain = collating.is_default(worker_input.collate_fn)
        tolerant = collating.install(self._arena, strict=plain)
        self._tolerant = tolerant if plain else None
        seed = spec.seed_everything()
        self._reseed(spec.shared_seed)
        private.set_worker_info(id=spec.worker, num_workers=spec.workers, seed=seed, dataset=worker_input.dataset)
        if worker_input.worker_init_fn is not None:
            worker_input.worker_init_fn(spec.worker)
        if spec.profile:
            roots = {"dataset": worker_input.dataset, "collate_fn": worker_input.collate_fn}
            self._transforms = Transforms(roots)
        self._fetcher = fetcher = self._new_fetcher()
        if fetcher.reread_samples:
            self._send(messages.Reread(fetcher.reread_samples, fetcher.reread_seconds))

    def _reseed(self, shared_seed: int | None) -> None:
        worker_input = self._worker_input
        if (
            worker_input is not None
            and isinstance(worker_input.dataset, private.IterDataPipe)
            and shared_seed is not None
        ):
            self._shared_rng.manual_seed(shared_seed)
            worker_input.dataset = private.apply_random_seed(worker_input.dataset, self._shared_rng)

    def _new_fetcher(self) -> Fetcher:
        worker_input = self._worker_input
        assert worker_input is not None, "not prepared"
        return make_fetcher(worker_input, self._spec, self, collate=worker_input.collate_fn, tolerant=self._tolerant)

    # -- serving -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Make batches until asked to exit."""
        while not self._page.stop_asked:
            self._page.heartbeat(Stage.IDLE, -1)
            frame = self._backlog.popleft() if self._backlog else _await(self._channel)
            message = frame.message
            if isinstance(message, messages.BatchRequest):
                if self._fetcher is not None and not self._exhausted:
                    if message.seed is not None:
                        seed_generators(message.seed)
                    self._make(_job(message, batched=self._spec.auto_collation))
            elif isinstance(message, messages.BeginEpoch):
                self._begin_epoch(message)
            elif isinstance(message, messages.SendSlotBytes):
                self._carry(message)
            elif isinstance(message, messages.Leave):
                break
        self._page.heartbeat(Stage.LEAVING, -1)
        self._send(messages.Goodbye())

    def _make(self, job: BatchJob) -> None:
        assert self._fetcher is not None, "not prepared"
        if signal.getsignal(STACK_SIGNAL) is not self._handler:
            self._page.words[ARMED] = 0  # user code took over the signal: do not send it
        self._arena.open()
        try:
            batch = self._fetcher.fetch(job)
            self._page.heartbeat(Stage.PICKLE, job.batch)
            job.stamps.append(time.monotonic_ns())
            try:
                packed = self._packer.pack(batch)
            except BaseException as error:  # noqa: BLE001 - user-defined reductions run here
                self._fetcher.batch_recovery.fail_batch(job, "pickle", error)
                raise Emptied from None
        except Interrupted:
            return
        except IterableEnded as end:
            self._exhausted = True
            self._send(
                messages.Exhausted(job.batch, end.cut_short, self._fetcher.position_update()), job.packed_failures()
            )
            return
        except (RaiseFailure, Emptied) as outcome:
            self._arena.discard()
            update = self._fetcher.position_update()
            answer: object = messages.BatchEmpty(job.batch, update)
            if isinstance(outcome, RaiseFailure):
                answer = messages.BatchFailed(job.batch, while_loading=False, position_update=update)
            self._send(answer, job.packed_failures())
            return
        except BaseException as error:  # noqa: BLE001 - describing the failure failed; report it anyway
            self._arena.discard()
            self._send(
                messages.BatchFailed(job.batch, while_loading=False),
                pickle.dumps([self._failure_without_sample(error, job.number).dumps()]),
            )
            return
        finally:
            batch = None
        retired, self._arena.retired = tuple(self._arena.retired), []
        job.stamps.append(time.monotonic_ns())
        self._page.heartbeat(Stage.SEND, job.batch)
        packed.batch, packed.retired, packed.samples, packed.times = job.batch, retired, job.samples, job.times()
        packed.failures = job.packed_failures()
        packed.profile = b"" if self._transforms is None else self._transforms.take()
        packed.position_update = self._fetcher.position_update()
        if len(sys.modules) != len(self._modules):
            self._send_imports()  # before the batch, which may be the last message
        self._send(packed, packed.data)

    def _begin_epoch(self, message: messages.BeginEpoch) -> None:
        self._exhausted = False
        self._page.heartbeat(Stage.INIT, -1)  # the dataset's __iter__ may be slow; this is not idle time
        # the position of a replaced worker belongs to the last epoch
        self._spec = dataclasses.replace(self._spec, epoch=message.epoch, start_at=None)
        try:
            self._reseed(message.shared_seed)
            self._fetcher = self._new_fetcher()
        except BaseException as error:  # noqa: BLE001 - the dataset's __iter__ runs here
            self._fetcher = None
            self._send_not_ready(error, "at the beginning of an epoch")

    # -- RecoveryContext ---------------------------------------------------------------------------------------------

    @override
    def warn_once(self, text: str) -> None:
        self._send(messages.WarnOnce(), text.encode())

    @override
    def start_over(self) -> None:
        self._arena.discard()
        self._arena.open()

    @override
    def ask(self, job: BatchJob, failed: SampleFailure) -> Decision:
        # the parent runs the user's function and may be busy training
        was = self._page.read()
        self._page.heartbeat(Stage.ASKING, job.batch, failed.position)
        self._send(messages.PolicyQuestion(job.batch), failed.dumps())
        while True:
            if self._page.stop_asked:
                raise Interrupted
            frame = _await(self._channel)
            match frame.message:
                case messages.PolicyAnswer(decision):
                    self._page.heartbeat(was.stage, was.batch, was.position)
                    return Decision(decision)
                case messages.SendSlotBytes() as carry:
                    self._carry(carry)
                case messages.Leave():
                    self._backlog.append(frame)
                    raise Interrupted
                case _:
                    self._backlog.append(frame)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, message: object, data: bytes | memoryview = b"", fds: tuple[int, ...] = ()) -> None:
        """Send; wait until the parent has read, since it may be busy training."""
        self._channel.post(message, data, fds)
        while not self._channel.flush():
            if self._page.stop_asked:
                raise ChannelClosed("asked to stop")
            self._channel.poll(LIVENESS_CHECK.seconds, write=True)

    def _send_imports(self) -> None:
        """Report newly imported installed modules; the fork server imports them next time."""
        loaded = list(sys.modules.items())
        names = [name for name, module in loaded if name not in self._modules and is_installed_module(module)]
        self._modules = {name for name, _ in loaded}
        if names:
            self._send(messages.Imported(), "\n".join(names).encode())

    def _send_not_ready(self, error: BaseException, when: str) -> None:
        loading = self._page.read().stage is Stage.LOADING
        failed = self._failure_without_sample(error, None, f"raised {when}")
        self._send(messages.BatchFailed(None, while_loading=loading), pickle.dumps([failed.dumps()]))

    def _failure_without_sample(self, error: BaseException, batch: int | None, *notes: str) -> SampleFailure:
        """Describe a failure that belongs to no single sample."""
        worker = self._spec.worker
        taken = record(error, (place(None, batch, worker), *notes), by_value=self._spec.by_value)
        seconds = self._page.read().seconds()
        stage = "init" if batch is None else "getitem"
        return SampleFailure(-1, None, batch, worker, stage, seconds, taken, pid=os.getpid(), decision=Decision.RAISE)

    def _carry(self, message: messages.SendSlotBytes) -> None:
        data = self._arena.read_back(message.slot)
        self._send(messages.SlotBytes(message.slot, message.generation), data)

    def _announce(self, slot: int, size: int, fd: int) -> None:
        self._send(messages.NewSlot(slot, size), fds=(fd,))


def _job(request: messages.BatchRequest, *, batched: bool) -> BatchJob:
    index, spares = pickle.loads(request.packed)
    return BatchJob(request.batch, request.number, index, spares, request.decisions, batched=batched)


def warm_up() -> None:
    """Do once, in the fork server, the imports and first calls that every worker needs."""
    WorkerSpec(
        worker=0,
        workers=1,
        iterable=False,
        auto_collation=True,
        drop_last=False,
        base_seed=0,
        shared_seed=None,
        threads=1,
        by_value=True,
    ).seed_everything()
    collating.additions()


def make_start_memory() -> tuple[int, int]:
    """Create a new worker's status page and the memory for its stacks; return their descriptors."""
    page = memory.create(PAGE_BYTES, "page")
    try:
        return page, memory.create(STACKS_BYTES, "stacks")
    except BaseException:
        os.close(page)
        raise
