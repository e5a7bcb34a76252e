"""A cluster whose nodes are agents in this process: everything of the pool on a cluster but Ray itself.

The agents are real ones, with real workers. What Ray would carry is pickled and unpickled on its way, so nothing is shared by accident.
A node can die, refuse to start an agent, or come later; an agent can stop answering.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace

from unjam.loader.cluster.node_agent import NodeAgent
from unjam.loader.cluster.node_link import AgentCannotStart, AgentLost
from unjam.loader.cluster.ray_cluster import Node, RayCluster


class FakeNode:
    """One machine. `refuses`: why it cannot start an agent."""

    def __init__(self, name: str, cpus: int = 2, refuses: str = "") -> None:
        self.name, self.cpus, self.refuses = name, cpus, refuses
        self.agents: list[FakeAgent] = []
        self.dead = ""

    @property
    def room(self) -> int:
        return 0 if self.dead else self.cpus - sum(agent.share for agent in self.agents if not agent.closed)

    def die(self) -> None:
        """End the node with everything on it."""
        self.dead = "The actor died because its node has died."
        for agent in self.agents:
            agent.inner.close()

    def workers(self) -> list[int]:
        """Process ids."""
        pools = [agent.inner._pool for agent in self.agents if not agent.closed]
        return [state.pid for pool in pools if pool is not None for state in pool.states().values()]


class FakeAgent:
    """See `Agent`."""

    def __init__(self, node: FakeNode, share: int, begin: bytes, content) -> None:
        self.node, self.share, self.closed, self.silent = node, share, False, False
        if not node.refuses:
            shipment, specs = pickle.loads(begin)
            self.inner = NodeAgent(shipment, lambda: content, specs)
            node.agents.append(self)

    def tell(self, orders) -> None:
        self._lives()
        self.inner.tell(carried(orders))

    def poll(self, seconds, within):
        if self.node.refuses:
            raise AgentCannotStart(self.node.refuses)
        reply = carried(self.inner.poll(seconds))
        self._answers(within)
        return reply

    def ask(self, question, argument, within):
        self._answers(within)
        return carried(getattr(self.inner, question)(carried(argument)))

    def close(self, within) -> None:
        if not self.node.refuses:
            self.closed = True
            self.inner.close()

    def _lives(self) -> None:
        if self.node.dead:
            raise AgentLost(self.node.dead)

    def _answers(self, within) -> None:
        self._lives()
        if self.silent:
            raise AgentLost(f"it did not answer within {within:g} s")


def carried(thing):
    """What arrives on the other side."""
    return pickle.loads(pickle.dumps(thing, protocol=5))


class FakeRay:
    """As much of the module `ray` as the pool asks for, over some nodes."""

    def __init__(self, *nodes: FakeNode) -> None:
        self.machines = list(nodes)

    def cluster_resources(self):
        return {"CPU": float(sum(node.cpus for node in self.machines if not node.dead))}

    def available_resources(self):
        return {"CPU": float(sum(node.room for node in self.machines))}

    def get_runtime_context(self):
        return SimpleNamespace(get_job_id=lambda: "job", get_node_id=lambda: "node")

    def put(self, value):
        return [bytes(buffer) for buffer in value]

    def workers(self) -> list[int]:
        return [pid for node in self.machines for pid in node.workers()]


class FakeCluster(RayCluster):
    """RayCluster's placement on fake nodes."""

    def nodes(self):
        each = self._each()
        rooms = [(node, int(node.room // each["CPU"]) if set(each) == {"CPU"} else 0) for node in self._ray.machines]
        return sorted((Node(node.name, node.name, room) for node, room in rooms if room), key=lambda one: -one.room)

    def _agent(self, node, share, specs):
        machine = next(one for one in self._ray.machines if one.name == node.key)
        return FakeAgent(machine, share, pickle.dumps((self._shipment, specs)), self._stored[0])
