"""How a batch crosses the process border: recycled memory, one pickler, leases.

NOTE [ The life of a slot ]

A worker owns slots: pieces of anonymous memory that it and the parent both map. It fills a free slot, marks it leased
in the shared page, and sends a message of a few hundred bytes that says what lies where. The parent rebuilds the
batch over that memory without copying. All tensors and arrays of one batch hold one owner object; when the last of
them is gone, however the user passed them around, the owner's weak reference fires and the slot's word in the page
becomes free. The word is the whole account: no message, list or lock can lose it, and it can be written from any thread
at any time.

Each filling has a generation. A lease frees its own generation only, so a late release can never free a slot that
was filled again. The worker fills a slot again only if the word says free *and* nothing in the worker itself still
refers to the earlier filling (a dataset may keep what its collate function made).

If the consumer keeps batches, the later ones are copied into ordinary memory and their slots go back at once, so that
holding a thousand batches costs what a thousand ordinary tensors cost. Nothing here ever waits for a slot: where
none is free the worker makes one more, and where none can be made the bytes travel through the channel.
"""
