"""A loader from its description."""

from __future__ import annotations

import functools
import importlib.util
import inspect

import torch
import torch.utils.data

from fuzz import datasets, parts
from fuzz.program import Loader

HAS_DATAPIPES = importlib.util.find_spec("torch.utils.data.datapipes") is not None
HAS_IN_ORDER = "in_order" in inspect.signature(torch.utils.data.DataLoader.__init__).parameters


def loader_class(side: str):
    """The class of one side."""
    if side == "torch":
        return torch.utils.data.DataLoader
    import unjam

    return unjam.DataLoader


def build(side: str, plan: Loader):
    """The loader; raises what its class or the user's code raises."""
    dataset = datasets.make(plan.data, plan.failure)
    options = {
        "batch_size": plan.batch_size,
        "shuffle": plan.shuffle,
        "drop_last": plan.drop_last,
        "num_workers": plan.workers,
        "timeout": plan.timeout,
        "persistent_workers": plan.persistent,
        "pin_memory": plan.pin_memory,
    }
    length, failure = plan.data.length, plan.failure
    if plan.sampler:
        options["sampler"] = _failing(parts.SAMPLERS[plan.sampler](length), failure)
    if plan.batch_sampler:
        del options["batch_size"], options["shuffle"], options["drop_last"]
        options["batch_sampler"] = _failing(parts.BATCH_SAMPLERS[plan.batch_sampler](length), failure)
    if plan.prefetch is not None:
        options["prefetch_factor"] = plan.prefetch
    if plan.method is not None:
        options["multiprocessing_context"] = plan.method
    if plan.generator is not None:
        options["generator"] = torch.Generator().manual_seed(plan.generator)
    if HAS_IN_ORDER and not plan.in_order:
        options["in_order"] = False
    collate = parts.collate_of(plan.collate) if plan.collate else None
    if failure is not None and failure.place == "collate":
        collate = functools.partial(parts.raises_at, failure, collate or parts.identity)
    if collate is not None:
        options["collate_fn"] = collate
    if plan.init:
        options["worker_init_fn"] = parts.init_of(plan.init)
    if failure is not None and failure.place == "init":
        options["worker_init_fn"] = functools.partial(parts.raises_init, failure)
    return loader_class(side)(dataset, **options)


def _failing(sampler, failure):
    return parts.Failing(sampler, failure) if failure is not None and failure.place == "sampler" else sampler
