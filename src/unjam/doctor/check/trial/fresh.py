"""Runs a trial in a new interpreter that inherits nothing: `main([folder])`."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

from unjam.doctor.check.trial import sandbox
from unjam.system.isolation import redirect


def main(arguments: list[str]) -> None:
    """Rebuild the loader from its pickled parts, and run the trial."""
    (folder,) = arguments
    redirect.begin()
    with open(f"{folder}/setup", "rb") as file:
        setup, sys.path[:] = pickle.load(file)  # to find the same modules as the program
    with open(f"{folder}/packed", "rb") as file:
        parts: dict[str, Any] = pickle.load(file)
    from torch.utils.data import DataLoader  # noqa: PLC0415 - takes seconds

    options: dict[str, Any] = {"collate_fn": parts["collate_fn"], "worker_init_fn": parts["worker_init_fn"]}
    if parts["order"] is not None:
        options["batch_sampler"] = parts["order"]
    else:
        options |= {"batch_size": parts["batch_size"], "drop_last": parts["drop_last"]}
    loader: Any = DataLoader(parts["dataset"], **options)
    with open(f"{folder}/begun", "w", encoding="ascii"):
        pass
    sandbox.run_trial(loader, setup, {"dataset": loader.dataset, "collate_fn": loader.collate_fn})
    os._exit(0)
