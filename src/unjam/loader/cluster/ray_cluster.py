"""Agents as Ray actors. Only this file and `actor` use Ray."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from unjam.deadlines import NODE_START
from unjam.errors import CannotShipError, ClusterError, UnjamWarning
from unjam.loader.cluster import node_messages as msg
from unjam.loader.cluster.actor import ActorAgent
from unjam.loader.cluster.node_agent import version
from unjam.loader.cluster.node_copy import digest_of
from unjam.loader.cluster.node_link import Agent, AgentCannotStart, AgentLost, Cluster, NodeLink
from unjam.loader.pool.pool_request import PayloadCache
from unjam.loader.pool_spec import RayPool
from unjam.loader.ship import shipping
from unjam.loader.ship.pickle_culprit import find_culprit
from unjam.loader.ship.process_state import ProcessState
from unjam.loader.worker.spec import WorkerInput, WorkerSpec


def connect(settings: RayPool) -> Any:
    """Return the module `ray`, connected to the cluster; raise `ClusterError` if that is not possible."""
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ClusterError("pool='ray' needs Ray: pip install 'unjam[ray]'") from error
    if not ray.is_initialized():
        try:
            # an agent that cannot reach the head is our business: Ray would end this whole process
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(int(NODE_START.seconds)))
            _init(ray, settings.address)
        except Exception as error:
            where = f"the cluster at {settings.address}" if settings.address else "a Ray cluster"
            raise ClusterError(f"{where} cannot be reached: {error}") from error
    return ray


def _init(ray: Any, address: str | None) -> None:
    """Connect to a cluster. One that we start for this machine alone listens on the loopback interface only."""
    options = {"ignore_reinit_error": True, "logging_level": logging.WARNING}
    try:
        ray.init(address=address or "auto", **options)
    except ConnectionError:
        if address is not None:
            raise
        with _on_this_machine_only():
            ray.init(address="local", include_dashboard=False, **options)


@contextlib.contextmanager
def _on_this_machine_only() -> Iterator[None]:
    """Let Ray use the loopback interface, as it does on systems where it makes no clusters of several machines."""
    from ray._private import ray_constants  # noqa: PLC0415 - an extra; there is no public way

    known = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if known is None:
        warnings.warn(
            "this version of Ray listens on all network interfaces of this machine", UnjamWarning, stacklevel=4
        )
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = known


class RayAgent(Agent):
    """An actor, as a link uses it. `patience`: how many seconds its node may take to give it a process."""

    def __init__(self, ray: Any, actor: Any, patience: float) -> None:
        self._ray, self._actor, self._patience = ray, actor, patience
        self._asked: Any = None
        self._lost: type[AgentLost] = AgentCannotStart  # until it has answered once

    @override
    def tell(self, orders: list[msg.Order]) -> None:
        with self._named():
            self._actor.tell.remote(orders)

    @override
    def poll(self, seconds: float, within: float) -> msg.Reply:
        with self._named(within):
            asked = self._asked or self._actor.poll.remote(seconds)
            if self._lost is AgentCannotStart:  # the node may have no processors left for it
                done, _ = self._ray.wait([asked], timeout=min(self._patience, within))
                if not done and not self._has_process():
                    raise AgentCannotStart(
                        f"Ray did not start the agent's process within {self._patience:g} s: other jobs may have taken its processors"
                    )
            self._asked = None
            reply: msg.Reply = self._ray.get(asked, timeout=within)
            self._lost = AgentLost
            self._asked = self._actor.poll.remote(seconds)  # before the caller has read this reply
            return reply

    @override
    def ask(self, question: str, argument: Any, within: float) -> Any:
        with self._named(within):
            return self._ray.get(self._actor.ask.remote(question, argument), timeout=within)

    @override
    def close(self, within: float) -> None:
        self._asked = None
        if (
            not self._ray.is_initialized()
        ):  # the actors have ended with the connection; a call would start another cluster
            return
        with contextlib.suppress(Exception):  # it may be gone
            self._ray.get(self._actor.close.remote(), timeout=within)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def _has_process(self) -> bool:
        """Whether the actor has a process, which may still be importing torch or receiving the dataset."""
        from ray._private.state import actors  # noqa: PLC0415 - an extra; the public way needs Ray's dashboard

        known = actors(self._actor._actor_id.hex())  # noqa: SLF001 - there is no public name
        return bool(known.get("Address", {}).get("Port"))

    @contextlib.contextmanager
    def _named(self, within: float = 0.0) -> Iterator[None]:
        known = self._ray.exceptions
        if not self._ray.is_initialized():  # see `close`
            raise AgentLost("the program has shut Ray down")
        try:
            yield
        except AgentLost:
            raise
        except known.GetTimeoutError as error:
            raise self._lost(f"it did not answer within {within:g} s") from error
        except known.RayTaskError as error:  # what the agent itself raised
            raise AgentLost(f"its agent failed: {type(error.cause).__name__}: {error.cause}") from error
        except known.RayActorError as error:
            if error.actor_init_failed:  # a package may be missing there: Ray's last line is the exception
                raise AgentCannotStart((_lines(error) or [type(error).__name__])[-1]) from error
            raise AgentLost(_short(error)) from error
        except known.NodeDiedError as error:
            raise AgentLost(_short(error)) from error
        except known.RayError as error:
            raise self._lost(_short(error)) from error
        except Exception as error:  # Ray was shut down, or this process lost its node
            raise AgentLost(
                f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            ) from error


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]


def _short(error: Exception) -> str:
    """Return the line of Ray's error that says why."""
    lines = _lines(error)
    why = [line for line in lines if "because" in line or "Died" in line or "died" in line]
    return (why or lines or [type(error).__name__])[-1][:300]


@dataclass(frozen=True, slots=True)
class Node:
    """A living node: its id, its name for messages, and how many workers find room there."""

    key: str
    name: str
    room: int


class RayCluster(Cluster):
    """Starts agents on the cluster's nodes."""

    def __init__(self, ray: Any, settings: RayPool, shipment: msg.Shipment, stored: Any) -> None:
        self._ray, self._settings, self._shipment, self._stored = ray, settings, shipment, stored
        self._keys: dict[str, str] = {}  # by the name of a link
        self._failed: Counter[str] = Counter()  # nodes whose agent never worked

    @override
    def grow(
        self, workers: int, links: list[NodeLink], specs: list[WorkerSpec], wake: Callable[[], None]
    ) -> list[NodeLink]:
        used = {self._keys[link.name] for link in links}
        nodes = sorted((node for node in self.nodes() if node.key not in used), key=lambda node: self._failed[node.key])
        best = [node for node in nodes if self._failed[node.key] == self._failed[nodes[0].key]] if nodes else []
        found: list[NodeLink] = []
        room = workers_of_rank(self._ray, self._settings) - sum(link.room for link in links)
        for node, share in shares(best, min(workers, max(0, room)), spread=self._settings.placement != "pack"):
            try:
                agent = self._agent(node, share, specs)
            except Exception:
                if not found:
                    raise
                break  # use those that were made
            name = (
                node.name if all(link.name != node.name for link in [*links, *found]) else f"{node.name}-{node.key[:6]}"
            )
            self._keys[name] = node.key
            found.append(NodeLink(agent, name, share, wake))
        return found

    @override
    def lost(self, link: NodeLink) -> None:
        if not link.answered:
            self._failed[self._keys[link.name]] += 1

    @override
    def why_no_room(self) -> str:
        try:
            free = self._ray.available_resources().get("CPU", 0.0)
            total = self._ray.cluster_resources().get("CPU", 0.0)
        except Exception as error:  # noqa: BLE001 - it is gone
            return f"the cluster does not answer ({type(error).__name__}: {error})"
        needs = ", ".join(f"{amount:g} {name}" for name, amount in self._each().items())
        return f"{free:g} of its {total:g} processors are free, and a worker needs {needs}"

    def nodes(self) -> list[Node]:
        """Return the living nodes that have room, with the roomiest first."""
        group = self._settings.placement
        if not isinstance(group, str):
            return self._bundles(group)
        from ray._private.state import available_resources_per_node  # noqa: PLC0415 - an extra; there is no public way

        free = available_resources_per_node()
        found = []
        for one in self._ray.nodes():
            left = free.get(one["NodeID"], {})
            room = min((left.get(name, 0.0) // amount for name, amount in self._each().items()), default=0.0)
            if one["Alive"] and room >= 1:
                found.append(Node(one["NodeID"], one["NodeManagerAddress"], int(room)))
        return sorted(found, key=lambda node: -node.room)

    def try_here(self, node: Node, specs: list[WorkerSpec]) -> RayAgent:
        """Start an agent on a node, for a trial."""
        return self._agent(node, 1, specs)

    def _each(self) -> dict[str, float]:
        """The resources of one worker."""
        each = {"CPU": float(self._settings.cpus), **self._settings.resources}
        return {name: amount for name, amount in each.items() if amount}

    def _bundles(self, group: Any) -> list[Node]:
        found = []
        for number, bundle in enumerate(group.bundle_specs):
            room = min(bundle.get(name, 0.0) // amount for name, amount in self._each().items())
            if room >= 1:
                found.append(Node(str(number), f"bundle {number}", int(room)))
        return found

    def _agent(self, node: Node, share: int, specs: list[WorkerSpec]) -> RayAgent:
        from ray.util import scheduling_strategies as strategies  # noqa: PLC0415 - an extra

        group = self._settings.placement
        if isinstance(group, str):
            where: Any = strategies.NodeAffinitySchedulingStrategy(node.key, soft=False)
        else:
            where = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=int(node.key))
        actor = _actor_class(self._ray).options(
            num_cpus=share * self._settings.cpus,
            resources={name: share * amount for name, amount in self._settings.resources.items()},
            scheduling_strategy=where,
            runtime_env=dict(self._settings.runtime_env) if self._settings.runtime_env is not None else None,
            max_restarts=0,
            max_task_retries=0,
        )
        # to install a runtime environment may take minutes
        patience = NODE_START.seconds if self._settings.runtime_env else self._settings.patience
        return RayAgent(self._ray, actor.remote(pickle.dumps((self._shipment, specs)), [self._stored]), patience)


def workers_of_rank(ray: Any, settings: RayPool) -> int:
    """Return how many workers the cluster has processors for, free or not; if there are several ranks, this rank's part."""
    ranks = os.environ.get("WORLD_SIZE", "")
    total: float = ray.cluster_resources().get("CPU", 0.0) / settings.cpus
    return max(1, math.floor(total / max(1, int(ranks) if ranks.isdecimal() else 1)))


def _actor_class(ray: Any) -> Any:
    """Return the actor's class, with separate threads for each kind of call, so that no kind waits for another."""

    class UnjamAgent(ActorAgent):
        poll = ray.method(concurrency_group="poll")(ActorAgent.poll)
        tell = ray.method(concurrency_group="tell")(ActorAgent.tell)
        ask = ray.method(concurrency_group="ask")(ActorAgent.ask)

    return ray.remote(concurrency_groups={"poll": 1, "tell": 1, "ask": 4})(UnjamAgent)


def shares(nodes: list[Node], workers: int, *, spread: bool) -> list[tuple[Node, int]]:
    """Divide workers among nodes: the same number to each, or few nodes filled up."""
    given: Counter[int] = Counter()
    for _ in range(min(workers, sum(node.room for node in nodes))):
        free = [number for number, node in enumerate(nodes) if given[number] < node.room]
        given[min(free, key=lambda number: given[number]) if spread else free[0]] += 1
    return [(node, given[number]) for number, node in enumerate(nodes) if given[number]]


# -- the dataset on its way --------------------------------------------------------------------------------------------


def ship_there(ray: Any, worker_input: WorkerInput, cache: PayloadCache) -> tuple[msg.Shipment, Any]:
    """Pickle the dataset for other machines and store it in the cluster, once as long as it stays the same."""
    try:
        payload = shipping.ship(worker_input, cache.cluster_payload, with_state=True, travels=True)
    except Exception as error:
        raise cannot_travel(worker_input, error, _pickles) from error
    context = ray.get_runtime_context()
    job = (context.get_job_id(), context.get_node_id())  # another cluster may count its jobs from the beginning
    if cache.cluster_copy is None or payload is not cache.cluster_payload or cache.cluster_copy[0] != job:
        view = payload.mapping.view()[: payload.manifest.size]
        digest = digest_of(view)
        cache.cluster_payload, cache.cluster_copy = payload, (job, digest, ray.put([pickle.PickleBuffer(view)]))
    _, digest, stored = cache.cluster_copy
    parts = (payload.manifest, digest, payload.modules, payload.own, payload.runs)
    return msg.Shipment(*parts, ProcessState().for_other_machines(), version()), stored


def cannot_travel(
    worker_input: WorkerInput, error: BaseException, attempt: Callable[[object], None], node: str = ""
) -> CannotShipError:
    """Return the error that names the part of the dataset that does not reach a node, or cannot be rebuilt there."""
    doing, at = ("rebuilt on", f"node {node}") if node else ("sent to", "another machine")
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        culprit = find_culprit(name, getattr(worker_input, name), attempt)
        if culprit is not None:
            text = f"{culprit.path} cannot be {doing} {at}: its type is {culprit.type_name}\n  {culprit.reason}"
            cure = (
                f"help: create it in the worker: replace {culprit.path} with unjam.per_worker(function, *arguments); install "
                "packages that the nodes lack with RayPool(runtime_env={'pip': [...]})"
            )
            return CannotShipError(f"{text}\n{cure}", path=culprit.path, type_name=culprit.type_name, cure=cure)
    # which node cannot rebuild it is not known: each part can be rebuilt on the one that was tried
    text = f"the dataset cannot be {doing} another machine: {type(error).__name__}: {error}"
    return CannotShipError(text, path="dataset")


def _pickles(part: object) -> None:
    """Pickle for another machine and rebuild it here."""
    payload = shipping.ship(part, travels=True)
    shipping.receive(payload.fd, payload.manifest, [], here=True)


def rebuilds_on(agent: RayAgent) -> Callable[[object], None]:
    """Return what raises if a part cannot be rebuilt by an agent."""
    lost: list[AgentLost] = []

    def attempt(part: object) -> None:
        if lost:
            return
        try:
            payload = shipping.ship(part, travels=True)
        except Exception:  # noqa: BLE001 - the whole could be pickled; this part is sent in another way
            return
        content = bytes(payload.mapping.view()[: payload.manifest.size])
        try:
            said = agent.ask("attempt", (content, payload.manifest), NODE_START.seconds)
        except AgentLost as error:  # that is not the part's fault
            lost.append(error)
            return
        if said:
            raise RuntimeError(said)

    return attempt
