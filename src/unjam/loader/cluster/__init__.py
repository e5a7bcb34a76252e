"""Workers on the nodes of a cluster.

NOTE [ Workers on a cluster ]

One Ray actor, the *agent*, runs on each node that has workers of a loader. It opens an ordinary
`ProcessPool` and relays what its workers send. So workers start, pack batches, ask about failures and
die there exactly as they do here, and the engine sees no difference.

    parent                                              node
    Driver - ClusterPool - NodeLink --- Ray actor --- NodeAgent - ProcessPool - workers

A link has a thread that polls its agent. The answer is one object of Ray: messages, and separately
the bytes of batches, which Ray copies from the worker's slot into its object
store and maps in the parent. A batch is an event for the driver only when its bytes are there. So a
lost object, a dead actor and a dead node are one case: the link is lost and all its workers with it,
no sample is to blame, and the engine starts the workers again. `ClusterPool` places them on the
remaining nodes, or on new ones.

The dataset is pickled once, for all nodes, and stored once in the object store. An agent copies it
into anonymous memory that all workers of the node map, also those of other loaders and ranks with the
same dataset.

Clocks differ between machines. A link knows the difference to its agent's clock, and all times that
arrive are in the parent's clock.
"""
