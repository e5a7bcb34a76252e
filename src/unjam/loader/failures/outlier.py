"""Finds the samples of a batch that differ from the others, or that cannot be collated at all.

We describe each sample as a tree: type, dtype and shape at each path. torch's default collate needs
equal trees, so comparing trees is enough. Another collate function may have any rules, so we name a
sample only if the function fails on it alone, or works without it.
"""

from __future__ import annotations

import copy
import numbers
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unjam.deadlines import PROBE_COLLATE

MAX_LEAVES = 1000
MAX_KEYS = 12


@dataclass(frozen=True, slots=True)
class Outlier:
    """A sample that does not fit. `usual`: what the samples at the positions `others` have at the same path."""

    place: int
    where: str
    has: str
    usual: str = ""
    others: tuple[int, ...] = ()
    how: str = ""

    def words(self, names: list[str], iterable: bool) -> str:  # noqa: FBT001 - private to the loader
        """Describe it in words; `names`: the samples' names by position."""
        who = f"the sample at position {self.place} of the batch" if iterable else names[self.place]
        at = f" at {self.where}" if self.where else ""
        verb = "has" if self.where else "is"
        text = f"{who} {verb} {self.has}{at}"
        if self.usual:
            alone = len(self.others) == 1 and not iterable
            rest = names[self.others[0]] if alone else f"each of the other {len(self.others)}"
            text += f"; {rest} {verb} {self.usual}"
        return f"{text} ({self.how})" if self.how else text


def find(samples: list[Any], collate: Callable[[list[Any]], Any], *, strict: bool, fresh: bool) -> list[Outlier]:
    """Return the samples that make `collate` fail, in order.

    `strict`: `collate` is torch's default collate, whose rules we know. `fresh`: `collate` has not seen
    these sample objects. Otherwise it may have modified them, so we consider only samples that are None.
    """
    trees = [read(sample) for sample in samples]
    if strict:
        return _impossible(trees) or _unlike(trees) or _with_graph(trees)
    return _by_trial(samples, trees, collate, fresh=fresh)


def unlike(samples: list[Any]) -> list[Outlier]:
    """Return the samples that look different from the others, without calling collate."""
    return _unlike([read(sample) for sample in samples])


def read(sample: Any) -> dict[str, str]:
    """Return the tree of a sample: a description for each path."""
    found: dict[str, str] = {}
    try:
        _walk(sample, "", found)
    except Exception:  # noqa: BLE001 - user objects may raise when inspected
        found.setdefault("", f"a {type(sample).__qualname__}")
    return found


def _walk(part: Any, where: str, found: dict[str, str]) -> None:
    if len(found) >= MAX_LEAVES:
        return
    if isinstance(part, Mapping):
        keys = [repr(key) for key in part]
        shown = ", ".join(sorted(keys)[:MAX_KEYS]) + (", …" if len(keys) > MAX_KEYS else "")
        found[where] = f"a {type(part).__name__} with keys {shown or 'none'}"
        for key in part:
            _walk(part[key], f"{where}[{key!r}]", found)
    elif isinstance(part, Sequence) and not isinstance(part, (str, bytes, bytearray)):
        found[where] = f"a {_kind(part)} of length {len(part)}"
        for place, one in enumerate(part):
            _walk(one, f"{where}[{place}]", found)
    else:
        found[where] = describe(part)


def _kind(part: Sequence[Any]) -> str:
    return "sequence" if type(part) in (list, tuple) else type(part).__name__


def describe(leaf: Any) -> str:
    """Describe a leaf; two leaves with equal descriptions can be collated."""
    if leaf is None:
        return "None"
    if isinstance(leaf, (bool, numbers.Number)) or (type(leaf).__module__ == "numpy" and getattr(leaf, "ndim", 1) == 0):
        return "a number"
    if isinstance(leaf, (str, bytes)):
        return f"a {type(leaf).__name__}"
    try:
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    except RuntimeError:  # a nested tensor has no shape
        shape = dtype = None
    if shape is not None and dtype is not None:
        grad = " that requires grad" if getattr(leaf, "requires_grad", False) else ""
        try:
            sizes = ", ".join(str(int(size)) for size in shape)
        except (TypeError, ValueError, RuntimeError):
            sizes = str(shape)
        name = type(leaf).__name__
        article = "an" if name == "ndarray" or name[0] in "AEIOUaeiou" else "a"
        return f"{article} {name} of shape [{sizes}] and dtype {str(dtype).removeprefix('torch.')}{grad}"
    return f"a {type(leaf).__module__}.{type(leaf).__qualname__}".replace("builtins.", "")


def _impossible(trees: list[dict[str, str]]) -> list[Outlier]:
    """Return samples that hold a value the default collate never accepts."""
    from unjam.system.torch_private import default_collate_fn_map  # noqa: PLC0415 - only when something fails

    known = {f"a {kind.__module__}.{kind.__qualname__}" for kind in _kinds(default_collate_fn_map)}
    odd = []
    for place, tree in enumerate(trees):
        for where, has in tree.items():
            foreign = has.startswith("a ") and "." in has.split(" ")[1] and has not in known
            if has == "None" or foreign:
                usual, others = _usual(trees, place, where)
                odd.append(Outlier(place, where, has, usual, others, "default_collate cannot put it into a batch"))
                break
    return odd


def _with_graph(trees: list[dict[str, str]]) -> list[Outlier]:
    """Return samples with a tensor that requires grad; a worker cannot collate those into shared memory."""
    found = []
    for place, tree in enumerate(trees):
        where = next((where for where, has in tree.items() if has.endswith("requires grad")), None)
        if where is not None:
            found.append(Outlier(place, where, tree[where], how="call .detach() on it"))
    return found


def _kinds(table: Mapping[Any, Any]) -> list[type]:
    found: list[type] = []
    for kind in table:
        found += kind if isinstance(kind, tuple) else [kind]
    return found


def _usual(trees: list[dict[str, str]], place: int, where: str) -> tuple[str, tuple[int, ...]]:
    """Return the most common different value at a path, and the positions of the samples that have it."""
    others = [(at, tree.get(where)) for at, tree in enumerate(trees) if at != place]
    held = Counter(has for _, has in others if has is not None and has != trees[place].get(where))
    if not held:
        return "", ()
    usual = held.most_common(1)[0][0]
    return usual, tuple(at for at, has in others if has == usual)


def _unlike(trees: list[dict[str, str]]) -> list[Outlier]:
    """Return samples whose tree is not the most common one; in a tie, the first tree wins."""
    shapes = [tuple(sorted(tree.items())) for tree in trees]
    common = Counter(shapes).most_common(1)[0][0] if shapes else ()
    usual, alike = dict(common), tuple(place for place, shape in enumerate(shapes) if shape == common)
    odd = []
    for place, tree in enumerate(trees):
        if shapes[place] == common:
            continue
        where = next((w for w in sorted({*tree, *usual}, key=lambda w: (len(w), w)) if tree.get(w) != usual.get(w)), "")
        odd.append(Outlier(place, where, tree.get(where, "nothing"), usual.get(where, "nothing"), alike))
    return odd


def _by_trial(samples: list[Any], trees: list[dict[str, str]], collate: Any, *, fresh: bool) -> list[Outlier]:
    until = time.monotonic() + PROBE_COLLATE.seconds
    by_place = {odd.place: odd for odd in _unlike(trees)}

    def works(part: list[Any]) -> bool | None:
        """Whether collate works on copies of some samples; None if there are none, or no time is left."""
        if not part or time.monotonic() > until:
            return None
        try:
            part = copy.deepcopy(part)
        except Exception:  # noqa: BLE001 - cannot be copied: use it directly
            part = list(part)
        try:
            collate(part)
        except Exception:  # noqa: BLE001 - this only tests whether it fails
            return False
        return True

    def odd(place: int, how: str) -> Outlier:
        known = by_place.get(place)
        if known is not None:
            return Outlier(place, known.where, known.has, known.usual, known.others, how)
        return Outlier(place, "", trees[place].get("", "something else"), how=how)

    candidates = range(len(samples)) if fresh else [place for place, sample in enumerate(samples) if sample is None]
    alone = [place for place in candidates if works([samples[place]]) is False]
    if alone and len(alone) < len(samples):
        return [odd(place, "collate_fn fails on it alone") for place in alone]
    suspects = [place for place in candidates if place in by_place]
    if suspects and works([sample for place, sample in enumerate(samples) if place not in suspects]):
        how = "collate_fn works without it" if len(suspects) == 1 else "collate_fn works without these samples"
        return [odd(place, how) for place in suspects]
    for place in candidates if len(samples) > 1 else ():
        if works(samples[:place] + samples[place + 1 :]):
            return [odd(place, "collate_fn works without it")]
    return []
