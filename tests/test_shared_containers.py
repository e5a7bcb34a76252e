"""Lists, mappings and arrays that exist once: what comes back, how they travel, what is left behind."""

from __future__ import annotations

import bisect
import copy
import gc
import math
import multiprocessing
import os
import pickle
from collections import namedtuple
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unjam
from support import python
from unjam.shared import buffer, dicts, plain, share


@dataclass
class Sample:
    name: str
    box: tuple


Point = namedtuple("Point", "x y")


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    """What was pickled is kept for no longer than it is held."""
    monkeypatch.setattr(buffer, "KEEP_SECONDS", -1.0)
    yield
    buffer._recently_pickled.clear()
    buffer._drop_expired()


ITEMS = {
    "ints": ([3, 1, 2, -5, 0], "words"),
    "floats": ([0.5, -0.0, math.inf], "words"),
    "booleans": ([True, False], "words"),
    "strings": (["", "a", "zwölf", "\U0001f600"], "texts"),
    "strings that are not UTF-8": (["", "a", "lone \udcff"], "items"),
    "bytes": ([b"", b"\0\xff"], "blobs"),
    "tuples of numbers": ([(1, 2), (3, 4)], "words"),
    "lists of numbers": ([[1.0, 2.0], [3.0, 4.0]], "words"),
    "dicts alike": ([{"a": 1, "b": [1, None]}, {"a": 2, "b": {"c": (1,)}}], "records"),
    "dicts unlike": ([{"a": 1}, {"b": 2}, {}], "items"),
    "dicts in another order": ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], "items"),
    "paths and labels": ([("x.jpg", 1), ("y.jpg", 2)], "items"),
    "rows of other lengths": ([[1], [1, 2], []], "items"),
    "numbers of two types": ([1, 2.5, True], "items"),
    "large ints": ([1 << 80, 2], "items"),
    "None": ([None, None], "items"),
    "sets": ([{1, 2}, frozenset("ab")], "items"),
    "bytearrays": ([bytearray(b"x")], "items"),
    "numpy's scalars": ([np.float64(1.5), np.int32(3)], "items"),
    "named tuples": ([Point(1, 2)], "items"),
    "objects": ([Sample("a", (1, 2)), Sample("b", ())], "items"),
    "late": ([1] * 5000 + ["x", Sample("a", ())], "items"),
    "late plain": (["a"] * 5000 + [None], "items"),
    "nothing": ([], "words"),
}


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("source", [list, iter, tuple])
def test_items_come_back_equal(name, source):
    items, layout = ITEMS[name]
    shared = unjam.SharedList(source(items))
    assert shared._head["layout"] == layout
    assert isinstance(shared, unjam.SharedList)
    assert list(shared) == items
    assert [type(item) for item in shared] == [type(item) for item in items]
    assert [shared[place] for place in range(-len(items), len(items))] == items + items
    assert len(shared) == len(items)
    for wrong in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            shared[wrong]
    assert shared == items
    assert items == shared
    assert shared == pickle.loads(pickle.dumps(shared))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def exactly(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(exactly(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(exactly, a, b))
    return a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


@settings(max_examples=200, deadline=None)
@given(st.lists(PLAIN, max_size=8), st.booleans())
def test_any_plain_items_come_back_equal(items, once):
    shared = unjam.SharedList(iter(items) if once else items)
    assert exactly(list(shared), items)
    assert exactly([shared[i] for i in range(len(items))], items)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.tuples(st.text(), st.integers()),
        PLAIN, max_size=12,
    )
)  # fmt: skip
def test_any_plain_mapping_comes_back_equal(known):
    shared = unjam.SharedDict(known)
    assert shared == known
    assert list(shared) == list(known)
    assert all(exactly(shared[key], known[key]) for key in known)
    assert all(key in shared for key in known)
    assert "not a key of it" not in shared
    assert shared.get("not a key of it", 7) == 7


def test_nan_is_kept():
    (one,) = unjam.SharedList([{"a": math.nan, "b": [math.nan]}])
    assert math.isnan(one["a"])
    assert math.isnan(one["b"][0])


def test_a_shared_list_behaves_like_a_sequence():
    items = [f"{i:04d}" for i in range(1000)]
    shared = unjam.SharedList(items)
    part = shared[10:900:7]
    assert part == items[10:900:7]
    assert part[5:9] == items[10:900:7][5:9]
    assert part[-1] == items[10:900:7][-1]
    assert pickle.loads(pickle.dumps(part)) == part
    assert bisect.bisect(shared, "0500") == 501
    assert "0007" in shared
    assert "x" not in shared
    assert shared.index("0042") == 42
    assert shared.count("0042") == 1
    assert list(reversed(shared)) == items[::-1]
    assert shared + ["x"] == [*items, "x"]  # noqa: RUF005 - that is what is tested
    assert [*"x", *shared] == ["x"] + shared  # noqa: RUF005 - as above
    assert shared != items[:-1]
    assert shared[np.int64(3)] == shared[torch.tensor(3)] == "0003"
    assert copy.deepcopy(shared) is shared
    with pytest.raises(TypeError):
        shared["3"]
    with pytest.raises(TypeError):
        shared[0] = "x"
    assert np.asarray(unjam.SharedList([1, 2])).tolist() == [1, 2]
    assert np.asarray(unjam.SharedList([(1, 2), (3, 4)])).shape == (2, 2)


def test_iterator_items_are_not_held_twice():
    """Of a stream of large items, only some are alive at a time."""
    alive, most = 0, 0

    class Item(bytes):
        def __init__(self, *_):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    shared = unjam.SharedList(Item(b"x" * (1 << 18)) for _ in range(600))
    assert len(shared) == 600
    assert most < 400


def test_a_raising_generator_leaves_nothing_behind(tmp_path):
    def items():
        yield "a"
        raise RuntimeError("half-way")

    before = os.listdir("/proc/self/fd")
    with pytest.raises(RuntimeError, match="half-way"):
        unjam.SharedList(items())
    with pytest.raises(RuntimeError, match="half-way"):
        unjam.SharedList(items(), path=tmp_path / "x")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_behind():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        kept = [unjam.SharedList(["a"]), unjam.SharedDict({"a": 1}), unjam.SharedArray(np.ones(10))]
        pickle.loads(pickle.dumps(kept))
    del kept
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# -- travelling ------------------------------------------------------------------------------------------------------------


def look(shared, key):
    return os.getpid(), shared[key], len(shared)


def answer(shared, key, answers):
    answers.put(look(shared, key))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_containers_can_be_sent_to_another_process(method):
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    shared = unjam.SharedList([Sample(str(i), (i,)) for i in range(100)])
    process = context.Process(target=answer, args=(shared, 7, answers))
    process.start()
    pid, item, count = answers.get(timeout=60)
    process.join(10)
    assert pid != os.getpid()
    assert (item, count) == (Sample("7", (7,)), 100)


def test_containers_can_be_sent_through_pools_and_queues():
    array = unjam.SharedArray(np.arange(1000.0))
    known = unjam.SharedDict({f"k{i}": i for i in range(100)})
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(look, known, "k7").result(timeout=60)[1:] == (7, 100)
        assert pool.submit(look, array, 7).result(timeout=60)[1:] == (7.0, 1000)


def test_an_unrelated_process_can_open_it_while_its_owner_lives(tmp_path):
    shared = unjam.SharedList([f"{i}" for i in range(1000)])
    (tmp_path / "reference").write_bytes(pickle.dumps(shared))
    read = "import pickle, sys; shared = pickle.load(open(sys.argv[1], 'rb')); print(shared[7], len(shared))"
    done = python(["-c", read, str(tmp_path / "reference")], check=True)
    assert done.stdout == "7 1000\n"
    del shared
    gc.collect()
    done = python(["-c", read, str(tmp_path / "reference")])
    assert "GoneError" in done.stderr
    assert "has released" in done.stderr


def make_one(count):
    return unjam.SharedList(str(i) for i in range(count))


def test_a_container_survives_while_it_is_in_transit(monkeypatch):
    monkeypatch.setattr(buffer, "KEEP_SECONDS", 30.0)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(look, (make_one(10), 7)).get(timeout=30)[1:] == ("7", 10)
        assert pool.apply_async(make_one, (10,)).get(timeout=30) == [str(i) for i in range(10)]
    monkeypatch.setattr(buffer, "KEEP_SECONDS", -1.0)
    gc.collect()
    assert not buffer._recently_pickled
    gc.collect()
    assert buffer._drop_expired not in gc.callbacks


def test_a_buffer_is_mapped_once_per_process():
    shared = unjam.SharedList(["a"])
    again = pickle.loads(pickle.dumps(shared))
    assert again._buffer is shared._buffer


# -- files -------------------------------------------------------------------------------------------------------------------


def test_containers_can_be_stored_in_files(tmp_path):
    names = unjam.SharedList((f"{i}" for i in range(3000)), path=tmp_path / "names")
    known = unjam.SharedDict({"a": {"name": "x"}}, path=tmp_path / "known")
    array = unjam.SharedArray(np.arange(6, dtype=">i4").reshape(2, 3).T, path=tmp_path / "array")
    assert names[-1] == "2999"
    del names
    code = (
        "import unjam\n"
        "print(unjam.SharedList.open('names')[7], unjam.SharedDict.open('known')['a']['name'], unjam.SharedArray.open('array').tolist())"
    )
    done = python(["-c", code], cwd=tmp_path, check=True)
    assert done.stdout == "7 x [[0, 3], [1, 4], [2, 5]]\n"
    assert array.dtype == np.dtype(">i4")
    assert pickle.loads(pickle.dumps(known))["a"] == {"name": "x"}
    with pytest.raises(ValueError, match="contains a shared list, not a dict"):
        unjam.SharedDict.open(tmp_path / "names")


def test_damaged_files_are_refused(tmp_path):
    unjam.SharedList(["a"] * 100, path=tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-3])
    (tmp_path / "other").write_bytes(b"hello")
    for name in ("cut", "other"):
        with pytest.raises(ValueError, match="was not written by unjam, or is incomplete"):
            unjam.SharedList.open(tmp_path / name)
    shared = unjam.SharedList.open(tmp_path / "x")
    reference = pickle.dumps(shared)
    del shared
    gc.collect()
    unjam.SharedList(["b"] * 2000, path=tmp_path / "x")
    with pytest.raises(unjam.GoneError, match="not the file that was shared"):
        pickle.loads(reference)


# -- mappings and arrays -----------------------------------------------------------------------------------------------------


def test_equal_keys_of_different_types_match():
    shared = unjam.SharedDict({1: "a", "1": "b", (1, 2): "c", b"1": "d", None: "e", 2.5: "f"})
    assert shared[1.0] == shared[True] == shared[np.int64(1)] == "a"
    assert (shared["1"], shared[1.0, 2], shared[b"1"], shared[None], shared[2.5]) == ("b", "c", "d", "e", "f")
    with pytest.raises(TypeError):
        [] in shared
    with pytest.raises(TypeError, match="keys are strings, bytes, numbers"):
        unjam.SharedDict({Sample: 1})


def test_the_hash_is_the_same_in_every_process():
    keys = "['abc', b'abc', 17, 2.5, None, ('a', 1)]"
    code = f"from unjam.shared.dicts import stable_hash; print([stable_hash(key) for key in {keys}])"
    there = python(["-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "12345"})  # fmt: skip
    here = [dicts.stable_hash(key) for key in ["abc", b"abc", 17, 2.5, None, ("a", 1)]]
    assert there.stdout == f"{here}\n"


def test_a_dict_is_built_from_pairs_and_rejects_duplicate_keys():
    shared = unjam.SharedDict((str(i), [i]) for i in range(5000))
    assert shared["4999"] == [4999]
    assert list(shared.items())[:2] == [("0", [0]), ("1", [1])]
    assert list(shared.values())[-1] == [4999]
    with pytest.raises(ValueError, match="occurs twice"):
        unjam.SharedDict(iter([("a", 1), ("a", 2)]))


def arrays():
    base = np.arange(24.0).reshape(4, 6)
    return {
        "plain": base, "columns first": np.asfortranarray(base), "every other": base[::2, ::-1], "empty": base[:0], "one number": np.array(3.5),
        "booleans": base > 3, "records": np.zeros(3, [("a", "i4"), ("b", "f8", (2,))]), "strings": np.array(["a", "bcd"]),
        "dates": np.array(["2024-01-01"], "M8[D]"), "complex": base + 1j,
    }  # fmt: skip


@pytest.mark.parametrize("name", arrays())
def test_arrays_come_back_equal(name):
    array = arrays()[name]
    shared = unjam.SharedArray(array)
    assert shared.dtype == array.dtype
    assert shared.shape == array.shape
    np.testing.assert_array_equal(np.asarray(shared), array)
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(shared))), array)
    with pytest.raises(ValueError, match="read-only"):
        shared.numpy()[...] = 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_tensors_come_back_equal(dtype):
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    shared = unjam.SharedArray(tensor[:, 1:])
    assert shared.tensor().dtype == dtype
    assert torch.equal(shared.tensor().float(), tensor[:, 1:].float())


def test_arithmetic_matches_numpy():
    shared = unjam.SharedArray(np.arange(4.0))
    assert (2 * shared + shared).tolist() == [0, 3, 6, 9]
    assert (shared == shared).all()
    assert shared.mean() == np.mean(shared) == 1.5
    assert shared[1:3].tolist() == [1, 2]
    assert 3.0 in shared


def test_writes_to_a_tensor_stay_in_their_process():
    shared = unjam.SharedArray(np.zeros(10))
    shared.tensor()[0] = 5
    reference = pickle.dumps(shared)
    code = f"import pickle; print(pickle.loads({reference!r})[0])"
    done = python(["-c", code], check=True)
    assert done.stdout == "0.0\n"


def test_arrays_can_be_filled_in_pieces(monkeypatch):
    monkeypatch.setattr("unjam.shared.arrays.PIECE", 1000)
    shared = unjam.SharedArray.filled(
        (100, 10), "f8", lambda piece, first: piece.__iadd__(np.arange(first, first + len(piece))[:, None])
    )
    assert shared[:, 3].tolist() == list(range(100))


def test_running_out_of_memory_raises_memory_error(monkeypatch):
    monkeypatch.setattr("unjam.shared.buffer.available_memory", lambda: 1 << 20)
    monkeypatch.setattr("unjam.shared.buffer.LOOK_EVERY", 1 << 16)
    with pytest.raises(MemoryError, match="give path="):
        unjam.SharedList(["x" * 1000] * 5000)


# -- share -------------------------------------------------------------------------------------------------------------------


class Holder:
    pass


def test_share_replaces_large_containers_of_an_object(monkeypatch, caplog):
    it = Holder()
    it.names = [f"name {i}" * 5 for i in range(20_000)]
    it.same = it.names
    it.inner = Holder()
    it.inner.known = {i: str(i) * 9 for i in range(20_000)}
    it.inner.array = np.zeros(1 << 18)
    it.inner.tensor = torch.zeros(1 << 18)
    it.parts = [{"deep": tuple(range(1 << 17))}]
    it.odd = [lambda: 0] * 1 + [lambda: n for n in range(20_000)]
    it.few = [1, 2, 3]
    before = (list(it.names), dict(it.inner.known))
    assert unjam.share(it) is it
    assert isinstance(it.names, unjam.SharedList)
    assert it.same is it.names
    assert isinstance(it.inner.known, unjam.SharedDict)
    assert isinstance(it.inner.array, unjam.SharedArray)
    assert type(it.inner.tensor) is torch.Tensor
    assert isinstance(it.parts[0]["deep"], unjam.SharedList)
    assert it.few == [1, 2, 3]
    assert (it.names, it.inner.known) == before
    assert isinstance(unjam.share([b"x" * 10_000] * 1000 + [b"y" * i for i in range(2000)]), unjam.SharedList)
    assert unjam.share([1]) == [1]


def test_size_estimates_are_within_a_factor_of_two():
    import tracemalloc

    tracemalloc.start()
    items = [{"id": i, "box": [float(i)] * 4, "name": f"n{i}"} for i in range(20_000)]
    real, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 < share.estimate(items) / real < 2


def test_plain_values_are_recognised():
    assert plain.is_plain([{"a": (1, 2.5, None, b"x", {1}, frozenset())}]) is None
    recursive = []
    recursive.append(recursive)
    for odd in (np.float32(1), bytearray(), Point(1, 2), Sample("a", ()), len, int, recursive):
        assert plain.is_plain({"x": [odd]}) is not None, odd
    assert plain.is_plain("bytearray is a word") is None
