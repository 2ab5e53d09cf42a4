"""The wire format: what goes in comes out, and nothing else comes in."""

import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from populace.engines import wire
from populace.engines.wire import HEAD, MAGIC, VERSION, Message, pack, unpack
from populace.errors import WireError

SMALL = Message(kind="ask", fields={"run": "a", "round": 3}, arrays={"x": np.arange(6, dtype=np.int32).reshape(2, 3)})


def framed(header, body=b"", *, magic=MAGIC, version=VERSION):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return HEAD.pack(magic, version, len(text), len(body)) + text + body


@given(
    hnp.arrays(
        dtype=st.sampled_from([np.dtype(name) for name in wire.DTYPES]),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    st.dictionaries(st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=8), st.booleans()), max_size=4),
)
def test_what_goes_in_comes_out(array, fields):
    again = unpack(pack(Message(kind="any", fields=fields, arrays={"a": array})))
    assert again.kind == "any"
    assert again.fields == fields
    assert again.arrays["a"].dtype == array.dtype
    np.testing.assert_array_equal(again.arrays["a"], array)


@given(st.binary(max_size=200))
def test_noise_is_refused_and_never_crashes(data):
    with pytest.raises(WireError):
        unpack(data)


def written(message):
    arrays = [[name, array.dtype.name, list(array.shape)] for name, array in message.arrays.items()]
    return json.dumps([message.kind, message.fields, arrays], ensure_ascii=False, separators=(",", ":"))


@given(st.data())
def test_a_changed_byte_is_refused_or_changes_the_content_only(data):
    good = pack(SMALL)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[place] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack(bytes(bad))
    except WireError:
        return
    assert len(written(found)) <= len(written(SMALL))  # in letters: JSON may write one byte in six
    assert sum(array.nbytes for array in found.arrays.values()) == sum(array.nbytes for array in SMALL.arrays.values())


@pytest.mark.parametrize(
    "data",
    [
        pack(SMALL)[:-1],
        pack(SMALL) + b"x",
        framed({"kind": "a", "fields": {}, "arrays": []}, magic=b"XXXX"),
        framed({"kind": "a", "fields": {}, "arrays": []}, version=VERSION + 1),
        framed({"kind": "a", "fields": {}, "arrays": [["x", "object", [1]]]}, b"x" * 8),
        framed({"kind": "a", "fields": {}, "arrays": [["x", [], [1]]]}, b"x"),
        framed({"kind": "a", "fields": {}, "arrays": [["x", {}, [1]]]}, b"x"),
        framed({"kind": "a", "fields": {}, "arrays": [["x", "float32", [0, 2**30, 2**30, 2**30]]]}),
        framed({"kind": "a", "fields": {}, "arrays": [["x", "float32", [-1]]]}),
        framed({"kind": "a", "fields": {}, "arrays": [["x", "float32", [2**40]]]}),
        framed({"kind": "a", "fields": {}, "arrays": [["x", "uint8", [1]], ["x", "uint8", [1]]]}, b"ab"),
        framed({"kind": "a", "fields": {}, "arrays": [["x", "uint8", [1] * 9]]}, b"a"),
        framed({"kind": "a", "fields": {}, "arrays": [["x", "bool", [1]]]}, b"\x02"),
        framed({"kind": "a", "fields": {}, "arrays": [], "more": 1}),
        framed({"kind": 1, "fields": {}, "arrays": []}),
        framed(b'{"kind":"a","fields":{"x":NaN},"arrays":[]}'),
        framed(b'{"kind":"a","kind":"b","fields":{},"arrays":[]}'),
        framed(b"[" * 100_000),
        struct.pack("<4sHIQ", MAGIC, VERSION, 2**31, 0),
        None,
        5,
        "text",
    ],
)
def test_each_kind_of_damage_is_refused(data):
    with pytest.raises(WireError):
        unpack(data)


def test_the_size_is_checked_before_anything_else():
    with pytest.raises(WireError, match="at most 10 bytes"):
        unpack(pack(SMALL), most_bytes=10)


def test_objects_and_infinite_fields_do_not_travel():
    with pytest.raises(WireError):
        pack(Message(kind="a", arrays={"x": np.array([object()])}))
    with pytest.raises(WireError):
        pack(Message(kind="a", fields={"x": float("nan")}))


def test_fields_are_exactly_those_expected():
    assert wire.take_fields(SMALL, {"run": str, "round": int}) == ["a", 3]
    for kinds in ({"run": str}, {"run": str, "round": float}, {"run": str, "round": int, "more": int}):
        with pytest.raises(WireError):
            wire.take_fields(SMALL, kinds)
    with pytest.raises(WireError):
        wire.take_fields(Message(kind="a", fields={"n": True}), {"n": int})


def test_trees_travel_with_keys_and_come_back_in_shape():
    tree = {"w": jnp.ones((2, 3)), "key": jax.random.key(7), "n": jnp.int32(4)}
    again = wire.fill(wire.shapes(tree), wire.leaves(tree, "t"), "t")
    assert jax.random.key_data(again["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    assert again["n"] == 4
    np.testing.assert_array_equal(again["w"], tree["w"])


@pytest.mark.parametrize(
    "arrays",
    [
        {"t/0": np.array([1.0, np.nan], np.float32)},
        {"t/0": np.array([1.0, np.inf], np.float32)},
        {"t/0": np.array([1.0, 2.0, 3.0], np.float32)},
        {"t/0": np.array([1.0, 2.0], np.float64)},
        {"t/1": np.array([1.0, 2.0], np.float32)},
        {"t/0": np.array([1.0, 2.0], np.float32), "t/1": np.zeros(1)},
        {},
    ],
)
def test_wrong_shapes_types_numbers_and_counts_are_refused(arrays):
    like = wire.shapes(jnp.zeros(2))
    assert wire.fill(like, {"t/0": np.array([1.0, 2.0], np.float32)}, "t").tolist() == [1.0, 2.0]
    with pytest.raises(WireError):
        wire.fill(like, arrays, "t")


def test_rows_are_packed_and_filled_as_single_messages_are():
    rng = np.random.default_rng(0)
    tree = {"report": rng.integers(2, size=(9, 5)).astype(bool), "sum": rng.normal(size=(9, 2, 3)).astype(np.float32),
            "count": np.arange(9, dtype=np.int32), "nothing": np.zeros((9, 0), np.float32)}  # fmt: skip
    one = wire.shapes({name: rows[0] for name, rows in tree.items()})
    singles = [
        wire.pack(wire.Message(kind="value", arrays=wire.leaves({n: rows[i] for n, rows in tree.items()}, "value")))
        for i in range(9)
    ]
    assert wire.pack_rows("value", wire.leaves(tree, "value"), rows=9) == singles
    assert wire.pack_rows("value", {}, rows=2) == [wire.pack(wire.Message(kind="value"))] * 2
    other_spelling = wire.pack(wire.Message(kind="value", fields={"more": 1}, arrays=wire.unpack(singles[3]).arrays))
    for messages in (singles, singles[4:5], [*singles[:3], other_spelling, *singles[4:]]):
        found = wire.fill_rows(one, messages, "value")
        first = 4 if len(messages) == 1 else 0
        for name, rows in tree.items():
            assert np.array_equal(found[name], rows[first : first + len(messages)])
            assert found[name].dtype == rows.dtype


def test_rows_that_are_not_what_they_should_be_are_refused():
    template = wire.shapes({"a": np.zeros(2, np.float32), "b": np.zeros(3, bool)})
    good = {"value/0": np.zeros((4, 2), np.float32), "value/1": np.zeros((4, 3), bool)}
    right = wire.pack_rows("value", good, rows=4)
    wire.fill_rows(template, right, "value")
    wrong = right[2][:-1] + b"\x07"  # a byte that is neither true nor false
    not_finite = wire.pack_rows("value", good | {"value/0": np.full((4, 2), np.nan, np.float32)}, rows=4)
    shorter = wire.pack_rows("value", good | {"value/0": np.zeros((4, 1), np.float32)}, rows=4)
    for messages in ([*right[:2], wrong, right[3]], [right[0], not_finite[1]], [right[0], shorter[1]], shorter, [b"x"]):
        with pytest.raises(WireError):
            wire.fill_rows(template, messages, "value")
    with pytest.raises(WireError, match=r"only .* travel"):
        wire.pack_rows("value", {"value/0": np.zeros((4, 2), complex)}, rows=4)
