"""The codec of checkpoints: every tree comes back as it was, in values and exact types."""

import json
import struct
import sys
from collections import OrderedDict, deque, namedtuple

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kerasrl_gpu.checkpoint import codec, files
from kerasrl_gpu.errors import CheckpointError


@pytest.fixture(autouse=True, scope="module")
def once(backend):
    if backend == "jax":
        pytest.skip("no backend takes part; it runs under tensorflow")


def through_bytes(tree):
    """Encode, go through strict JSON and through safetensors' own reader, decode."""
    data, arrays = codec.encode(tree)
    text = json.dumps(data, allow_nan=False)
    stored = b"".join(bytes(piece) for piece in files.tensors(arrays))
    return codec.decode(json.loads(text), safetensors.numpy.load(stored).__getitem__)


def assert_same(got, want):
    """Equal to the last bit, and of the same types all the way down."""
    assert type(got) is type(want)
    if isinstance(want, np.ndarray):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()
        assert got.flags.writeable
    elif isinstance(want, np.generic):
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()
    elif isinstance(want, float):
        assert struct.pack("d", got) == struct.pack("d", want) or (got != got and want != want)
    elif isinstance(want, dict):
        assert_same(list(got), list(want))
        assert_same(list(got.values()), list(want.values()))
    elif isinstance(want, set | frozenset):
        assert got == want
        assert sorted(map(repr, got)) == sorted(map(repr, want))
    elif isinstance(want, list | tuple | deque):
        assert getattr(got, "maxlen", None) == getattr(want, "maxlen", None)
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert_same(a, b)
    else:
        assert got == want


TEXT = st.text(st.characters(exclude_categories=()), max_size=5) | st.just("$list")
NUMBERS = st.integers() | st.floats() | st.integers(-(2**127), 2**127)
PLAIN = st.none() | st.booleans() | NUMBERS | TEXT | st.binary(max_size=90)
KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
KEYS = KEYS | st.binary(max_size=5) | st.tuples(KEYS, KEYS)
# Long doubles are left out: the bytes that pad them are anything.
DTYPES = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | hnp.datetime64_dtypes(endianness="?")
    | hnp.timedelta64_dtypes()
    | hnp.byte_string_dtypes(min_len=1)
    | hnp.unicode_string_dtypes(min_len=1)
    | hnp.array_dtypes(hnp.integer_dtypes() | hnp.floating_dtypes(sizes=(32, 64)))
)
SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_side=3)
VIEWS = st.sampled_from([np.asarray, np.transpose, np.flip, np.asfortranarray])
ARRAYS = st.builds(lambda array, view: view(array), hnp.arrays(DTYPES, SHAPES), VIEWS)
SCALARS = hnp.arrays(DTYPES, ()).map(lambda array: array[()]).filter(lambda x: type(x) is not tuple)
TREES = st.recursive(
    PLAIN | ARRAYS | SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(TEXT, inner)
        | st.builds(deque, st.lists(inner), st.none() | st.integers(0, 3))
        | st.sets(KEYS)
        | st.frozensets(KEYS)
    ),
    max_leaves=12,
)


@given(tree=TREES)
def test_every_tree_comes_back_exactly(tree):
    assert_same(through_bytes(tree), tree)


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=65, max_size=70))
def test_many_numbers_become_an_array_and_come_back_as_python_numbers(numbers):
    floats = [float(number) for number in numbers]
    _, arrays = codec.encode({"ints": numbers, "floats": floats})
    assert {name: a.dtype.str for name, a in arrays.items()} == {"ints": "<i8", "floats": "<f8"}
    assert_same(through_bytes((numbers, floats)), (numbers, floats))
    beyond = [*numbers, 2**63]  # one too many bits: the list stays text
    assert_same(through_bytes(beyond), beyond)
    assert_same(through_bytes([*numbers, 1.0]), [*numbers, 1.0])
    assert_same(through_bytes([*numbers, True]), [*numbers, True])


LEFT = {
    "extreme floats": [5e-324, 1.7976931348623157e308, -0.0, 0.1 + 0.2, 2.0**-1074, 1e16],
    "not finite": [float("nan"), float("inf"), -float("inf")],
    "128 bits": [2**127 - 1, -(2**127), 2**64, -(2**63) - 1],
    "5,000 digits": 10**5000,
    "halves of a pair": "\ud83d\ude00",
    "a pair": "\U0001f600",
    "tags as keys": {"$array": 1, "$": {"$float": "nan"}},
    "kinds of keys": {1: "a", "1": "b", (1, "x"): "c", None: "d", b"\0": "e", 2.5: "f"},
    "text scalars": [np.str_("a\0"), np.bytes_(b"a\0"), np.str_(""), np.str_("\ud800")],
    "zero sizes": [np.zeros((2, 0), "U3"), np.ndarray((2,), "U0", b""), np.zeros(0, ">f4")],
    "0-d": [np.array(3.5), np.array(3, ">i2"), np.array("x"), np.array(1, "M8[us]")],
    "fields": np.zeros(2, np.dtype([("a", "i1"), ("b", ">f8", (2,))], align=True)),
    "RNG": np.random.RandomState(3).get_state(),
    "ring": deque([1, (2.0, "x")], maxlen=5),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_hypothesis_rarely_draws_comes_back_too(name):
    assert_same(through_bytes({name: LEFT[name]}), {name: LEFT[name]})


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_ml_dtypes_go_as_bytes(name):
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
    assert_same(through_bytes({"a": array.T, "s": array[1, 2]}), {"a": array.T, "s": array[1, 2]})


def test_a_transposed_view_is_stored_by_rows():
    # [[0, 1, 2], [3, 4, 5]] transposed reads 0 3, 1 4, 2 5; its memory reads 0 1 2 3 4 5
    _, arrays = codec.encode(np.arange(6, dtype="u1").reshape(2, 3).T)
    _, data = files.tensors(arrays)
    assert bytes(data) == bytes([0, 3, 1, 4, 2, 5])


def test_every_array_is_aligned():
    wide, narrow = np.zeros(3), np.zeros(3, "u1")
    (header, *_) = files.tensors({"a": narrow, "b": wide, "c": np.zeros(1, "f2"), "d": wide})
    starts = {name: entry["data_offsets"][0] for name, entry in json.loads(header[8:]).items()}
    assert starts == {"b": 0, "d": 24, "c": 48, "a": 50}
    assert len(header) % 8 == 0


def test_the_name_that_safetensors_keeps_for_itself_is_free():
    assert_same(through_bytes({"__metadata__": np.arange(3)}), {"__metadata__": np.arange(3)})


def test_array_names_are_paths():
    leaf = np.zeros(1)
    tree = {"networks": {"a b/c": [leaf, leaf]}, "a": {1: leaf, "1": leaf}}
    _, arrays = codec.encode(tree)
    assert list(arrays) == ["networks/a_b_c/0", "networks/a_b_c/1", "a/1", "a/1~2"]
    assert list(codec.encode(leaf)[1]) == ["state~2"]
    assert arrays["a/1"] is leaf  # no copy


def test_a_branch_is_decoded_alone():
    tree = {"net": {"w": (np.arange(2), np.arange(3)), 4: "four"}, "big": np.arange(9)}
    data, arrays = codec.encode(tree)
    read = []
    part = codec.decode(codec.branch(data, ("net", "w", 1)), lambda n: read.append(n) or arrays[n])
    assert_same(part, np.arange(3))
    assert read == ["net/w/1"]
    assert codec.branch(data, ("net", 4)) == "four"
    with pytest.raises(CheckpointError, match=r"state\['net'\] has no 'x', only \['4', 'w'\]"):
        codec.branch(data, ("net", "x"))
    with pytest.raises(CheckpointError, match=r"has no 0, only \[\]"):
        codec.branch(data, ("big", 0))


Pair = namedtuple("Pair", "a b")
REFUSED = {
    "an object": (object(), r"state\['x'\]\[1\] is a builtins.object"),
    "a function": (len, "builtins.builtin_function_or_method"),
    "a class of one's own": (Pair(1, 2), "test_checkpoint_codec.Pair"),
    "a subclass of dict": (OrderedDict(a=1), "collections.OrderedDict"),
    "a masked array": (np.ma.masked_array([1]), "MaskedArray"),
    "objects": (np.array([None]), r"state\['x'\]\[1\] has dtype object"),
    "objects in fields": (np.zeros(1, [("a", "O")]), "has dtype .*'O'"),
    "variable text": (np.array(["a"], np.dtypes.StringDType()), "has dtype StringDType"),
    "bfloat16 in fields": (np.zeros(1, [("a", ml_dtypes.bfloat16)]), "has dtype"),
    "fields that overlap": (
        np.zeros(1, np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]})),
        "has dtype",
    ),
    "a bytearray": (bytearray(2), "builtins.bytearray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_named_with_its_path(name):
    value, match = REFUSED[name]
    with pytest.raises(CheckpointError, match=match):
        codec.encode({"x": [0, value]})


def test_a_tree_that_holds_itself_ends():
    tree = {"a": []}
    tree["a"].append(tree)
    with pytest.raises(CheckpointError, match=r"state\['a'\]\[0\]\['a'\].* more than 100 levels"):
        codec.encode(tree)
    deepest = []
    for _ in range(100):
        deepest = (deepest,)
    assert_same(through_bytes(deepest), deepest)


HOSTILE = {
    "an unknown tag": {"$call": ["os.system", "true"]},
    "two keys": {"$tuple": [], "b": 1},
    "objects": {"$array": ["eight", "|O", [1]]},
    "objects as a scalar": {"$scalar": ["|O", "00" * 8]},
    "code for a dtype": {"$array": ["eight", "[__import__('os')]", [1]]},
    "another module's dtype": {"$array": ["eight", "finfo", [1]]},
    "too large a shape": {"$array": ["eight", "<f8", [9]]},
    "a negative shape": {"$array": ["eight", "|u1", [-8, -1]]},
    "too small a shape": {"$array": ["eight", "|u1", [7]]},
    "no array": {"$array": ["none", "<f8", [1]]},
    "no list": {"$tuple": 5},
    "no number": {"$float": "1.0"},
    "keys without a hash": {"$dict": [[[], 1]]},
    "no hex": {"$bytes": "xy"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_foreign_json_is_refused(name):
    with pytest.raises(CheckpointError, match=r"unknown tag|is wrong"):
        codec.decode({"a": [HOSTILE[name]]}, {"eight": np.arange(8, dtype="u1")}.__getitem__)


def test_the_callers_limit_on_digits_does_not_matter():
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert_same(through_bytes([10**630, 10**650]), [10**630, 10**650])
    finally:
        sys.set_int_max_str_digits(limit)
