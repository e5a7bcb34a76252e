"""A damaged or hostile state is refused when it is loaded, with one exception that names the field."""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import itertools
import json
import random
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler

import unjam
from support import Counting, Squares
from unjam.errors import CannotResumeError
from unjam.loader.checkpoint.saved_state import fields_checksum
from unjam.system import random_state


def make(**options):
    return unjam.DataLoader(Squares(40), batch_size=4, shuffle=True, num_workers=1, **options)


@pytest.fixture(scope="module")
def states():
    """A state within an epoch, one between two, and one of a stream."""
    loader = make()
    for _ in itertools.islice(loader, 3):
        pass
    within = loader.state_dict()
    for _ in loader:
        pass
    stream = unjam.DataLoader(Counting(40), batch_size=2, num_workers=2)
    iterator = iter(stream)
    for _ in range(3):
        next(iterator)
    found = {"within": within, "between": loader.state_dict(), "stream": stream.state_dict()}
    iterator.close() if hasattr(iterator, "close") else None
    return found


def text_of(state: bytes) -> str:
    return base64.b64encode(zlib.compress(state)).decode()


def signed(saved: dict) -> dict:
    """The state, as somebody who knows the checksum would change it."""
    return {**saved, "checksum": fields_checksum(saved)}


def with_position(text: str, at: int, place: int) -> str:
    raw = bytearray(random_state.from_text(text))
    struct.pack_into("I", raw, 4 * place, at)
    return text_of(bytes(raw))


WRONG = [
    ("unjam", 2), ("unjam", True), ("epoch", "1"), ("epoch", -1), ("epoch", None), ("finished", 0), ("batches", 10**30),
    ("num_workers", 10**6), ("num_workers", -1), ("num_workers", 2.0), ("keeps_workers", None), ("seed", "x"), ("rank", [0]),
    ("rank", [3, 2]), ("rank", "ab"), ("generators_at_start", []), ("generators_at_start", {"global torch": 5}),
    ("generators_at_start", {"global torch": "no base64!"}), ("generators_at_start", {"global torch": text_of(b"short")}),
    ("generators_at_start", {"global other": text_of(b"")}), ("position", "0"), ("finished_ahead", list(range(50))),
    ("finished_ahead", [5, 5]), ("finished_ahead", 7), ("finished_ahead", ["5"]), ("indices_checksum", -1), ("seeded", "yes"),
    ("generators", {"numpy": text_of(bytes(3000))}), ("generators", None), ("last_worker", 10**9), ("sampler", 5),
    ("set_epoch", {"sampler": "3"}), ("workers", {"x": {}}), ("workers", {"0": 5}), ("workers", {"0": {"yielded": -1}}),
    ("workers", []), ("batches", 10**6), ("workers", {"1" * 5000: {}}), ("workers", {"00": {}}), ("generators", {}),
    ("generators_at_start", {}),
    ("generators_at_start", {"global torch": text_of(bytes(torch.Generator().get_state().numpy())), "elsewhere": "junk"}),
    ("seed", (1 << 64) - 1), ("unjam", torch.zeros(3)), ("unjam", np.zeros(3)),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda value: repr(value)[:30])
def test_a_wrong_value_is_named(states, field, value):
    saved = copy.deepcopy(states["within"])
    saved[field] = value
    with pytest.raises(CannotResumeError) as caught:
        make().load_state_dict(saved)
    assert field in str(caught.value) or field == "unjam"


def test_a_missing_field_is_named(states):
    for kind in ("within", "between"):
        for field in states[kind]:
            if field in ("sampler", "set_epoch", "workers", "order"):
                continue
            saved = {name: value for name, value in states[kind].items() if name != field}
            try:
                make().load_state_dict(saved)
            except CannotResumeError as error:
                assert field in str(error) or field == "unjam"


@pytest.mark.parametrize(
    "saved", [5, "text", [1], {"epoch": 3}, {"unjam": None}, None, 0, "", [], torch.zeros(3), np.zeros(3)]
)
def test_non_states_are_refused(saved):
    with pytest.raises(CannotResumeError):
        make().load_state_dict(saved)


@pytest.mark.parametrize("at", [625, 5_000, 10**6, (1 << 32) - 1])
@pytest.mark.parametrize(("name", "place"), [("numpy", 0), ("python", 624)])
def test_a_position_beyond_the_generator_words_is_refused(name, place, at):
    """numpy reads there without a check of its own: 10**6 is a segmentation fault."""
    good = random_state.as_text(random_state.capture((name,))[name])
    random_state.check(name, random_state.from_text(with_position(good, 624, place)))
    with pytest.raises(ValueError, match="position"):
        random_state.check(name, random_state.from_text(with_position(good, at, place)))


@pytest.mark.parametrize(
    "generator",
    [torch.Generator(), random.Random(1), np.random.RandomState(1), np.random.default_rng(1), np.random.Generator(np.random.MT19937(1)), np.random.Generator(np.random.Philox(1))],
    ids=lambda one: type(getattr(one, "bit_generator", one)).__name__,
)  # fmt: skip
def test_states_of_other_generators_are_refused(generator):
    own = random_state.state_of(generator)
    random_state.check_for(generator, own)
    for other in (
        b"",
        b"{}",
        b"[]",
        bytes(5000),
        own[:-1],
        own + b"x",
        b'{"bit_generator": "MT19937"}',
        b"[" * 5000,
    ):
        with pytest.raises(ValueError):
            random_state.check_for(generator, other)


def test_a_bit_generator_position_out_of_range_is_refused():
    generator = np.random.Generator(np.random.MT19937(1))
    state = json.loads(random_state.state_of(generator))
    state["state"]["pos"] = 10**6
    own = json.dumps(state).encode()
    with pytest.raises(ValueError, match="position"):
        random_state.check_for(generator, own)
    state["state"].update(pos=3, key=[-1] * 624)
    with pytest.raises(ValueError):
        random_state.check_for(generator, json.dumps(state).encode())


def test_a_decompression_bomb_is_refused(states):
    """A little text must not take much memory: the rest is never decompressed."""
    bomb = base64.b64encode(zlib.compress(bytes(1 << 26), 9)).decode()
    saved = copy.deepcopy(states["within"])
    saved["generators"] = {"torch": bomb}
    with pytest.raises(CannotResumeError, match="too long"):
        make().load_state_dict(saved)


def test_a_state_cannot_start_arbitrarily_many_workers(states):
    saved = copy.deepcopy(states["stream"])
    saved["num_workers"] = 4000
    saved["workers"] = {}
    saved["batches"] = saved["position"] = 0
    loader = unjam.DataLoader(Counting(40), batch_size=2, num_workers="auto")
    loader.load_state_dict(signed(saved))
    with pytest.raises(CannotResumeError, match="4000"):
        next(iter(loader))


def test_an_epoch_shorter_than_the_state_is_refused(states):
    """Nothing would come, without a word."""
    saved = copy.deepcopy(states["within"])
    saved["position"] = saved["batches"] = saved["sampler_iterations"] = 10**6
    loader = make()
    loader.load_state_dict(signed(saved))
    with pytest.warns(unjam.UnjamWarning, match="after 10 batches"):
        assert list(loader) == []


def test_states_load_with_weights_only(states):
    for saved in states.values():
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == saved


@pytest.mark.parametrize("field", ["finished_ahead", "position", "indices_checksum", "last_worker", "seed", "epoch"])
def test_a_plausible_but_wrong_value_is_refused(states, field):
    """It would leave samples out, repeat them or change their order, without a word."""
    saved = copy.deepcopy(states["within"])
    saved[field] = [saved["position"] + 4] if field == "finished_ahead" else saved[field] + 1
    with pytest.raises(CannotResumeError, match="changed since it was saved"):
        make().load_state_dict(saved)


class Stateful(Counting):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class StatefulSampler(RandomSampler):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_the_state_of_another_kind_of_loader_is_refused(states):
    """It would begin anew, without a word."""

    def state_of(loader):
        iterator = iter(loader)
        next(iterator)
        return loader.state_dict()

    stream, stateful = Counting(40), Stateful(40)
    sampled = unjam.DataLoader(Squares(40), batch_size=4, sampler=StatefulSampler(Squares(40)), num_workers=1)
    for saved, other in (
        (states["within"], unjam.DataLoader(stream, batch_size=4, num_workers=1)),
        (states["stream"], unjam.DataLoader(Squares(40), batch_size=2, num_workers=2)),
        (state_of(unjam.DataLoader(stateful, batch_size=2)), unjam.DataLoader(stream, batch_size=2)),
        (state_of(sampled), make()),
    ):
        with pytest.raises(CannotResumeError):
            other.load_state_dict(saved)


def test_the_position_of_the_torch_generator_is_checked(states):
    """Torch checks its two numbers one by one, and reads beyond its words."""
    raw = bytearray(torch.Generator().get_state().numpy())
    struct.pack_into("=8xi4xQ", raw, 0, 624, 624)
    saved = copy.deepcopy(states["within"])
    saved["generators"]["torch"] = text_of(bytes(raw))
    with pytest.raises(CannotResumeError, match="'generators': torch"):
        make().load_state_dict(signed(saved))


@pytest.mark.parametrize("knows", [False, True])
def test_random_damage_never_fails_later(states, knows):
    """Whatever one value becomes: it is refused with the exception, or the epoch runs."""
    draw = random.Random(random.randrange(10**6))
    values = [None, True, -1, 0, 3, 10**30, 1.5, "", "x", b"x", [], [1], {}, {"a": 1}, [[1]], float("nan")]
    for _ in range(150):
        saved = copy.deepcopy(states["within"])
        place = saved
        name = draw.choice(sorted(place))
        if isinstance(place[name], dict) and place[name] and draw.random() < 0.5:
            place = place[name]
            name = draw.choice(sorted(place))
        place[name] = draw.choice(values)
        if knows:
            with contextlib.suppress(Exception):  # what is no JSON cannot be signed
                saved = signed(saved)
        loader = unjam.DataLoader(Squares(40), batch_size=4, sampler=RandomSampler(Squares(40)))
        try:
            loader.load_state_dict(saved)
        except CannotResumeError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                list(loader)
            except CannotResumeError:
                pass
