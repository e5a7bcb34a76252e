"""Sends batches to an accelerator: `DataLoader(..., device="cuda")`.

NOTE [ From a slot to the device ]

A batch arrives in a slot, which is memory of the worker's and ours. We register each slot with the
driver of the device once; then the device reads it directly, and the host does not copy the batch.
Copies run on a stream of our own, for a few batches ahead of the consumer. When the consumer asks for a
batch, its current stream waits for the event after the copy; the consumer's thread does not.

Three things must not be reused too early:

- The slot: we hold the tensors over it until the event after the copy has happened. Then the last
  reference goes, and the slot is free as in NOTE [ The life of a slot ].
- Memory of the device: its allocator belongs to our stream, and the consumer uses the memory on
  another one. `record_stream` tells the allocator about each tensor that we hand over.
- The registration: it ends before the memory is unmapped, never in a forked child.

What does not lie in a registered slot (small batches, `num_workers=0`, a driver that refuses) goes
through pinned memory of torch's allocator, which keeps such memory until the copy is over.
"""
