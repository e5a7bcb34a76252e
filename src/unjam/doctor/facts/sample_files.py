"""Finds the file of a sample in a list that the dataset holds, such as `samples` of torchvision's ImageFolder.

It calls no code of the dataset: it reads only attributes that are plain lists, tuples or arrays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class FileList:
    """The list with one path for each sample.

    folder: what the paths are relative to. subsets: index lists of torch's `Subset`, the outermost first.
    """

    items: Sequence[Any]
    folder: str
    subsets: tuple[Sequence[int], ...]

    def __eq__(self, other: object) -> bool:
        """Whether every sample has the same file in both."""
        if not isinstance(other, FileList) or (self.folder, len(self.subsets)) != (other.folder, len(other.subsets)):
            return False
        pairs = [(self.items, other.items), *zip(self.subsets, other.subsets, strict=True)]
        return all(one is two or list(one) == list(two) for one, two in pairs)

    __hash__ = None  # type: ignore[assignment] # as Python sets it

    def file_of(self, index: str) -> str:
        """Return the path of a sample; empty: unknown."""
        try:
            number = int(index)
            for subset in self.subsets:
                number = int(subset[number])
            return next((path for text in _texts(self.items[number]) if (path := _file(text, self.folder))), "")
        except (ValueError, TypeError, LookupError):
            return ""


def file_list(dataset: Any) -> FileList | None:
    """Return the list of paths that a dataset holds; None: it has none."""
    from torch.utils.data import Subset  # noqa: PLC0415 - torch is imported by now

    subsets: list[Sequence[int]] = []
    while isinstance(dataset, Subset):
        subsets.append(dataset.indices)
        dataset = dataset.dataset
    attributes = list(getattr(dataset, "__dict__", {}).values())
    folders = ["", *(text for one in attributes for text in _texts((one,)))]
    for items in attributes:
        if (type(items) in (list, tuple) or type(items).__module__ == "numpy") and len(getattr(items, "shape", "1")):
            for folder in folders:
                if len(items) and any(_file(text, folder) for text in _texts(items[0])):
                    return FileList(items, folder, tuple(subsets))
    return None


def file_of(dataset: Any, index: str) -> str:
    """Return the path of a sample; empty: unknown."""
    files = file_list(dataset)
    return files.file_of(index) if files is not None else ""


def _texts(item: Any) -> Iterator[str]:
    """Yield the texts in an item: a path, or a tuple or dict with one."""
    for one in item.values() if type(item) is dict else item if type(item) in (list, tuple) else (item,):
        if isinstance(one, (str, os.PathLike)) and isinstance(path := os.fspath(one), str):
            yield path


def _file(text: str, folder: str) -> str:
    path = os.path.join(folder, text)
    return path if len(path) < 4096 and "\0" not in path and os.path.isfile(path) else ""
