"""Hypothesis strategies that make programs."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz import datasets, leaves, parts
from fuzz.build import HAS_DATAPIPES, HAS_IN_ORDER
from fuzz.program import Action, Data, Failure, Loader, Program

MAPS = ["map", "map", "map", "map", "bulk", "bulk odd"]
STREAMS = ["iterable", "iterable", "walker", "no length", "uneven"]
PIPES = ["iterdatapipe", "mapdatapipe"] if HAS_DATAPIPES else []
# collate functions whose result tells which worker ran them
TELLING = ("arrays", "default", "draws", "closure", "setting")
EPOCHS = ["iterate", "iterate", "iterate", "for", "break", "break", "two iterators", "thread", "next"]
OTHERS = ["length", "epoch", "draw"]


def _one_in(draw, number):
    return draw(st.integers(0, number - 1)) == number - 1


def _rarely(draw, number, values, usual):
    return draw(st.sampled_from(values)) if _one_in(draw, number) else usual


@st.composite
def _leaves(draw, collated, workers):
    names = leaves.COLLATED if collated else list(leaves.LEAVES)
    if workers:
        # torch's workers refuse to stack these, or send other numbers: there is nothing to compare with
        names = [name for name in names if name not in ("tensor conj", "tensor neg")]
    # each group as often as the others: tensors matter as much as the many odd objects
    groups = [[name for name in names if name.startswith(start)] for start in ("tensor", ("array", "scalar"))]
    groups.append([name for name in names if not name.startswith(("tensor", "array", "scalar"))])
    if not collated:
        # what default collate refuses in workers crosses the border only here
        groups.append(
            ["tensor leaf with grad", "tensor parameter", "tensor coo", "tensor transposed", "array readonly"]
        )
    pick = st.sampled_from(groups).flatmap(st.sampled_from)
    return tuple(draw(st.lists(pick, min_size=1, max_size=3 if collated else 6)))


@st.composite
def _data(draw, *, workers, portable, quiet, default_collate):
    kind = draw(st.sampled_from(MAPS if draw(st.booleans()) else [*MAPS, *STREAMS, *PIPES]))
    collated = default_collate and not _one_in(draw, 6)
    extras = [name for name in datasets.EXTRAS if not (portable and name in datasets.UNSENDABLE)]
    if quiet:
        extras = [name for name in extras if "generator" not in name and name != "random"]
    return Data(
        kind=kind,
        where="module" if portable else _rarely(draw, 3, ["local", "script"], "module"),
        length=draw(st.integers(1, 14)),
        structure=draw(st.sampled_from(["bare", "tuple", *datasets.STRUCTURES])),
        leaves=draw(_leaves(collated, workers)),
        size=draw(st.sampled_from(["small", "medium", "large"])),
        noisy=not quiet and draw(st.booleans()),
        ragged=_rarely(draw, 20, ["shape", "dtype", "none", "longer"], ""),
        lambdas=not portable and _one_in(draw, 8),
        extra=_rarely(draw, 5, extras, ""),
    )


@st.composite
def _failure(draw, data, workers):
    places = ["getitem", "getitem", "collate", "len"]
    if data.kind in CLASSES_MAP:
        places.append("sampler")
    if data.kind in STREAMS:
        places.append("iter")
    if workers:
        places.append("init")
    # what torch never recovers from costs seconds each time
    slow = ["local"]
    quick = [kind for kind in parts.ERRORS if kind not in slow]
    kind = _rarely(draw, 12, slow, draw(st.sampled_from(quick)))
    return Failure(draw(st.sampled_from(places)), kind, draw(st.integers(0, 6)))


CLASSES_MAP = ("map", "bulk", "bulk odd", "mapdatapipe")


@st.composite
def _loader(draw):
    workers = draw(st.sampled_from([0, 1, 2, 2, 3]))
    method = draw(st.sampled_from([None, None, "fork"])) if workers else None
    if workers and _one_in(draw, 25):
        method = draw(st.sampled_from(["spawn", "forkserver"]))
        workers = min(workers, 2)
    portable = method in ("spawn", "forkserver")
    in_order = not (HAS_IN_ORDER and workers and _one_in(draw, 10))
    collates = [name for name in [*parts.COLLATES, "lambda", "closure"] if in_order or name not in TELLING]
    collates = [name for name in collates if not (portable and name in ("lambda", "closure", "unpicklable"))]
    if not _one_in(draw, 6):
        collates = [name for name in collates if name != "unpicklable"]
    collate = _rarely(draw, 3, collates, "")
    data = draw(_data(workers=workers, portable=portable, quiet=not in_order, default_collate=not collate))
    failure = draw(_failure(data, workers)) if in_order and _one_in(draw, 5) else None
    if data.kind in STREAMS or data.kind == "iterdatapipe":
        batching = {"shuffle": True if data.kind == "iterdatapipe" and draw(st.booleans()) else None}
    else:
        batching = draw(_batching())
    fails_in_sampler = failure is not None and failure.place == "sampler"
    if fails_in_sampler and not batching.get("batch_sampler"):
        batching = {"sampler": batching.get("sampler") or "sequential"}
    options = {}
    if workers:
        options["persistent"] = draw(st.booleans()) if _one_in(draw, 2) else False
        options["prefetch"] = _rarely(draw, 3, [1, 3, 5], None)
        options["timeout"] = _rarely(draw, 8, [30], 0)
        inits = list(parts.INITS) if portable else [*parts.INITS, "lambda"]
        if "datapipe" in data.kind:
            inits.remove("changes dataset")
        options["init"] = _rarely(draw, 3, inits, "") if in_order else ""
    if not batching.get("batch_sampler"):
        options["batch_size"] = draw(st.sampled_from([None, 1, 2, 3, 4, 5]))
        options["drop_last"] = options["batch_size"] is not None and _one_in(draw, 4)
    return Loader(
        data=data,
        workers=workers,
        method=method,
        collate=collate,
        generator=_rarely(draw, 4, [1, 2], None),
        in_order=in_order,
        pin_memory=_one_in(draw, 20),
        failure=failure,
        **batching,
        **options,
    )


@st.composite
def _batching(draw):
    way = draw(st.sampled_from(["plain", "shuffle", "shuffle", "sampler", "batch sampler"]))
    if way == "sampler":
        return {"sampler": draw(st.sampled_from(list(parts.SAMPLERS)))}
    if way == "batch sampler":
        return {"batch_sampler": draw(st.sampled_from(list(parts.BATCH_SAMPLERS)))}
    return {"shuffle": True if way == "shuffle" else draw(st.sampled_from([None, False]))}


@st.composite
def _actions(draw, loaders):
    found = []
    if _one_in(draw, 5):
        found.append(Action(draw(st.sampled_from(["pickle", "deepcopy"])), draw(st.integers(0, loaders - 1))))
    kinds = [*EPOCHS, *OTHERS, *(["two loaders"] * 4 if loaders > 1 else [])]
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.integers(0, loaders - 1))
        if _one_in(draw, 10):
            # an iteration that stays open while other things happen
            found.append(Action("open", where))
            found.append(Action("some", where, draw(st.integers(0, 3))))
            if draw(st.booleans()):
                found.append(Action(draw(st.sampled_from(kinds)), where, draw(st.integers(0, 3))))
            found.append(Action("some", where, draw(st.sampled_from([1, 100]))))
            found.append(Action("drop", where))
            continue
        if _one_in(draw, 8):
            # the dataset is changed between two epochs
            found += [
                Action("iterate", where),
                Action("epoch", where, draw(st.integers(0, 2))),
                Action("iterate", where),
            ]
            continue
        kind = draw(st.sampled_from(kinds))
        found.append(
            Action(
                kind,
                where,
                draw(st.integers(0, 5)),
                draw(st.sampled_from(["none", "none", "some", "all", "part"])),
                _one_in(draw, 5),
            )
        )
    if not any(action.kind in (*EPOCHS, "two loaders", "some") for action in found):
        found.append(Action("iterate", 0))
    return tuple(found)


@st.composite
def programs(draw):
    """A program."""
    loaders = tuple(draw(_loader()) for _ in range(draw(st.sampled_from([1, 1, 1, 1, 2, 2, 3]))))
    return Program(draw(st.integers(0, 999)), loaders, draw(_actions(len(loaders))))
