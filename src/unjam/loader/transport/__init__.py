"""Sends a batch from a worker to the parent: recycled memory, one pickler, leases.

NOTE [ The life of a slot ]

A worker owns slots: pieces of anonymous memory that it and the parent both map. The worker fills a
free slot, marks it leased in the status page, and sends a message of a few hundred bytes that says
what lies where. The parent rebuilds the batch over that memory without copying. All tensors and
arrays of one batch hold one owner object. When the last of them is gone, the owner's weak reference
fires and marks the slot's word in the page as free. This works however the user passed them around.
The word is the only record, so no lost message, list or lock can make it wrong, and any thread can
write it at any time.

Each filling has a generation. A lease frees only its own generation, so a late release can never
free a slot that was filled again. The worker fills a slot again only if the word says free *and*
nothing in the worker itself still refers to the earlier filling (a dataset may keep what its
collate function made).

If the consumer keeps batches, we copy the later ones into ordinary memory and free their slots at
once. So holding a thousand batches costs as much as a thousand ordinary tensors. Nothing here waits
for a slot: if none is free, the worker makes a new one; if that fails, the bytes go through the
channel.
"""
