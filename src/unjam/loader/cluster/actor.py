"""The class of the actor. It imports little: the fork server starts first, and imports torch at the same time as the agent."""

from __future__ import annotations

import pickle
from typing import Any

from unjam.deadlines import NODE_START
from unjam.loader.pool import fork_server


class ActorAgent:
    """A `NodeAgent` in a process of Ray. `begin`: its pickled settings. `stored`: where the dataset's bytes are."""

    def __init__(self, begin: bytes, stored: list[Any]) -> None:
        fork_server.shared()
        from unjam.loader.cluster.node_agent import NodeAgent  # noqa: PLC0415 - see above

        shipment, specs = pickle.loads(begin)
        self._agent = NodeAgent(shipment, lambda: _content(stored), specs)

    def poll(self, seconds: float) -> Any:
        """Return what happened; wait at most `seconds` for the first event."""
        return self._agent.poll(seconds)

    def tell(self, orders: list[Any]) -> None:
        """Take orders."""
        self._agent.tell(orders)

    def ask(self, question: str, argument: Any) -> Any:
        """Call a method of the agent."""
        return getattr(self._agent, question)(argument)

    def close(self) -> None:
        """End all workers."""
        self._agent.close()


def _content(stored: list[Any]) -> Any:
    import ray  # noqa: PLC0415 - an extra

    return ray.get(stored[0], timeout=NODE_START.seconds)[0]
