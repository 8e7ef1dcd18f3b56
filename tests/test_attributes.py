"""Attributes of objects as plain data, and back, exact to the type."""

import enum
import functools
import math
import random
from collections import OrderedDict, deque

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu import attributes, names, policy, processors
from kerasrl_gpu import random as noise
from kerasrl_gpu.attributes import generators
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.keras_rl import rl_policy, rl_processors, rl_random


class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("left", "right")


class Own(policy.EpsGreedyQPolicy):
    """A policy of somebody's own."""


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple, deque)):
        maxlens = [getattr(side, "maxlen", None) for side in (one, other)]
        return len(set(maxlens)) == 1 and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        keys = [*zip(one, other)]
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in keys
        )
    if isinstance(one, np.ndarray):
        alike = (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and one.tobytes() == other.tobytes()
    if isinstance(one, (float, np.generic)):
        return np.array(one).tobytes() == np.array(other).tobytes()  # NaN and -0.0 too
    return one == other


def passed_on(thing, fresh):
    """`fresh`, restored from what was captured of `thing`; everything was."""
    state, missing = attributes.capture(thing)
    assert not missing
    attributes.restore(fresh, state)
    return fresh


# Functions ----------------------------------------------------------------------------------------

OF_THE_MODULE = np.random.default_rng(9)


def two_numbers():
    return [OF_THE_MODULE.random() for _ in range(2)]


def drawing(how):
    """A function that draws from a generator which stands in no attribute."""
    own = random.Random(3)
    return {
        "closure": lambda: own.random(),
        "closure of a closure": lambda: (lambda: own.random())(),
        "method": own.random,
        "bound method": own.gauss,
        "NumPy's method": np.random.default_rng(3).normal,
        "partial": functools.partial(own.gauss, 0, sigma=1),
        "default": lambda generator=own: generator.random(),
        "module": lambda: two_numbers(),
    }[how]


HOWS = ["closure", "closure of a closure", "method", "bound method", "NumPy's method", "partial"]


@pytest.mark.parametrize("how", [*HOWS, "default", "module"])
def test_a_function_goes_on_with_the_numbers_that_it_draws(how):
    thing = Thing(draw=drawing(how))
    thing.draw()
    state, missing = attributes.capture(thing)
    assert not missing
    expected = [thing.draw() for _ in range(3)]
    fresh = Thing(draw=drawing(how))
    attributes.restore(fresh, state)
    assert [fresh.draw() for _ in range(3)] == expected


def test_a_generator_that_a_function_shares_stays_shared():
    def new():
        thing = Thing(own=random.Random(3))
        thing.draw = lambda: thing.own.random() + shared.random()
        shared = thing.own
        return thing

    thing, fresh = new(), new()
    thing.draw()
    passed_on(thing, fresh)
    assert [fresh.draw(), fresh.own.random()] == [thing.draw(), thing.own.random()]


def test_the_process_own_generators_belong_to_nobodys_function():
    assert generators.behind(lambda: random.random() + np.random.random()) == []  # noqa: NPY002
    assert generators.behind(random.shuffle) == []
    assert generators.behind(np.random.random) == []


def test_a_function_that_draws_from_another_kind_of_generator_is_refused():
    state, _ = attributes.capture(Thing(draw=random.Random(3).random))
    for other in (np.random.default_rng(3).random, lambda: 1.0):
        with pytest.raises(CheckpointError, match=r"Thing\.draw draws from other generators here"):
            attributes.restore(Thing(draw=other), state)


def test_a_method_of_a_list_is_missing_for_the_list_is_replaced():
    seen = []
    _, missing = attributes.capture(Thing(seen=seen, note=seen.append))
    assert list(missing) == ["note"]


# Plain data ---------------------------------------------------------------------------------------

SCALARS = ["bool", "int8", "uint64", "float16", "float64", "complex64", "datetime64[s]", "S3", "U2"]
keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
arrays = st.builds(
    lambda dtype, shape: np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape),
    st.sampled_from(SCALARS),
    st.sampled_from([(), (0,), (3,), (2, 1, 2)]),
)
numbers = st.builds(lambda name: np.zeros((), name)[()], st.sampled_from(SCALARS))
atoms = keys | st.floats() | numbers | st.just(2**128 + 1)
trees = st.recursive(
    atoms | arrays | st.sets(keys, max_size=3),
    lambda part: (
        st.lists(part, max_size=3)
        | st.lists(part, max_size=3).map(tuple)
        | st.builds(deque, st.lists(part, max_size=3), st.sampled_from([None, 3, 5]))
        | st.dictionaries(keys | st.just("$") | st.tuples(keys, keys), part, max_size=3)
    ),
    max_leaves=12,
)


@given(tree=trees)
def test_plain_data_comes_back_as_it_was(tree):
    state, missing = attributes.capture(Thing(tree=tree))
    assert not missing
    fresh = Thing()
    attributes.restore(fresh, attributes.copied(state))
    assert same(fresh.tree, tree)
    assert same(attributes.copied(tree), tree)


@given(tree=trees, other=trees)
def test_equal_trees_are_the_same_and_others_are_not(tree, other):
    assert attributes.same(tree, attributes.copied(tree))
    if same(tree, other):
        assert attributes.same(tree, other)
    assert not attributes.same([tree, 1], [other, 2])
    assert not attributes.same({"a": tree}, {"a": tree, "b": other})


@pytest.mark.parametrize(
    "one, other, equal",
    [
        ([1, (2, math.nan)], (1, [2, math.nan]), True),
        (np.array([1.0, math.nan]), np.array([1.0, math.nan]), True),
        (np.array(["a"]), np.array(["a"]), True),
        (np.array([1.0]), np.array([[1.0]]), False),
        (np.array([1.0, 2.0]), [1.0, 2.0], True),
        (np.array([1.0, 2.0]), [1.0, 3.0], False),
        (deque([np.zeros(2)]), deque([np.zeros(2)]), True),
        (deque([np.zeros(2)]), deque([np.ones(2)]), False),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        (None, np.zeros(1), False),
        ([], [[]], False),
    ],
)
def test_what_is_the_same(one, other, equal):
    assert attributes.same(one, other) is equal
    assert attributes.same(other, one) is equal


def test_what_was_captured_is_nobodys():
    thing, fresh = Thing(rows=[np.zeros(2)], names={"a": {1}}), Thing()
    state, _ = attributes.capture(thing)
    thing.rows[0][:] = 9
    thing.names["a"].add(2)
    attributes.restore(fresh, state)
    fresh.rows[0][:] = 8
    again = Thing()
    attributes.restore(again, state)
    assert same(again.__dict__, {"rows": [np.zeros(2)], "names": {"a": {1}}})


def test_what_is_shared_or_holds_itself_does_so_afterwards():
    loop = [1]
    loop.append({"back": loop})
    fresh = passed_on(Thing(one=loop, two=(loop,)), Thing())
    assert fresh.one[1]["back"] is fresh.one is fresh.two[0]
    fresh = passed_on(Thing(left=[[len]], one=loop, two=loop), Thing())  # `left` is not counted
    assert fresh.two is fresh.one
    thing = Thing()
    thing.inner = thing
    assert (fresh := passed_on(thing, Thing())).inner is fresh


def test_slots_count():
    thing, fresh = Slotted(), Slotted()
    thing.left = np.float32(1.5)
    passed_on(thing, fresh)
    assert same(fresh.left, np.float32(1.5))
    assert not hasattr(fresh, "right")


def test_dtypes_are_kept():
    fresh = passed_on(Thing(a=np.float32, b=np.dtype(">i2"), c=[np.uint8]), Thing())
    assert (fresh.a, fresh.b, fresh.c) == (np.float32, np.dtype(">i2"), [np.uint8])


def test_skipped_names_are_left_out_at_every_depth():
    inner = policy.EpsGreedyQPolicy()
    inner.agent = object()
    state, missing = attributes.capture(Thing(agent=object(), inner=inner), skip=("agent",))
    assert list(state) == ["inner"]
    assert not missing


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [object(), OrderedDict(a=1), Colour.RED, np.array([None]), iter([]), {object(): 1}, 1j],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_taken_is_named(value):
    _, missing = attributes.capture(Thing(fine=1, parts=[0, {"x": value}]))
    assert list(missing) == ["parts[1]['x']"]
    assert type(value).__name__ in missing["parts[1]['x']"]
    with pytest.raises(CheckpointError, match=r"it\['y'\] is of type .*, which is no plain data"):
        attributes.copied({"y": value})


def test_views_of_one_memory_are_missing_unless_they_are_apart():
    grid = np.zeros((4, 4))
    _, missing = attributes.capture(Thing(grid=grid, row=grid[1]))
    assert missing == {"row": "a view of the memory of grid"}
    _, missing = attributes.capture(Thing(upper=grid[:2], lower=grid[2:]))
    assert not missing


def test_functions_classes_and_modules_stay_those_of_the_object():
    thing = Thing(f=len, kind=Thing, module=np, both=[len, 3], only=(len, [max]), none=None)
    fresh = passed_on(thing, Thing(f=max, kind=int, module=st, both=[min, 4], only=5, none=len))
    assert fresh.__dict__ == {
        "f": max,
        "kind": int,
        "module": st,
        "both": [min, 3],
        "only": 5,
        "none": len,
    }
    state, _ = attributes.capture(thing)
    with pytest.raises(CheckpointError, match=r"Thing.both\[0\] held what no checkpoint can hold"):
        attributes.restore(Thing(), state)


# Generators and spaces ----------------------------------------------------------------------------

GENERATORS = {
    **{
        name: lambda seed, name=name: np.random.Generator(getattr(np.random, name)(seed))
        for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
    },
    "gymnasium": lambda seed: gymnasium.utils.seeding.np_random(seed)[0],
    "RandomState": np.random.RandomState,
    "RandomState, PCG64": lambda seed: np.random.RandomState(np.random.PCG64(seed)),
    "Random": random.Random,
}


def draw(generator):
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(3)]
    shorts = generator.bytes(3)  # leaves half a word behind
    return [shorts, *generator.normal(size=3), float(generator.standard_gamma(2.0))]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("there", [*GENERATORS, None])
def test_generators_go_on(name, there):
    generator = GENERATORS[name](1)
    draw(generator)
    live = None if there is None else GENERATORS[there](2)
    fresh = passed_on(Thing(a=generator, b=[generator]), Thing(a=live))
    assert (fresh.a is live) == (there == name or {name, there} == {"gymnasium", "PCG64"})
    assert fresh.b[0] is fresh.a
    assert draw(fresh.a) == draw(generator)


def test_generators_that_are_shared_only_here_come_apart():
    shared = np.random.default_rng(3)
    thing = Thing(a=np.random.default_rng(1), b=np.random.default_rng(2))
    fresh = passed_on(thing, Thing(a=shared, b=shared))
    assert fresh.a is shared
    assert (draw(fresh.a), draw(fresh.b)) == (draw(thing.a), draw(thing.b))


def test_global_generators_are_not_taken():
    state, missing = attributes.capture(Thing(g=np.random.mtrand._rand, s=random.SystemRandom()))
    assert not missing
    assert not any(generators.is_generator(value) for value in state.values())
    assert "state" not in str(state)


def test_a_forged_generator_is_refused():
    with pytest.raises(CheckpointError, match="no state of a random generator"):
        generators.put({"kind": "Generator", "state": {"bit_generator": "default_rng"}})
    with pytest.raises(CheckpointError, match="no state of a random generator"):
        generators.put({"kind": "Pickle", "state": {"bit_generator": "PCG64"}})


def spaces():
    box = gymnasium.spaces.Box(-1, 1, (2,))
    nested = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(9), gymnasium.spaces.Text(5)])
    return gymnasium.spaces.Dict(
        box=box, nested=nested, sequence=gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(5))
    )


def test_spaces_sample_on_in_place():
    thing, fresh = Thing(space=spaces(), unused=spaces()), Thing(space=spaces(), unused=spaces())
    thing.space.seed(4)
    thing.space.sample()
    before = fresh.space
    passed_on(thing, fresh)
    assert fresh.space is before
    assert str(fresh.space.sample()) == str(thing.space.sample())
    assert fresh.unused["box"]._np_random is None
    state, _ = attributes.capture(thing)
    assert "low" not in str(state)


def test_another_class_in_place_is_refused():
    state, _ = attributes.capture(Thing(space=gymnasium.spaces.Discrete(2)))
    with pytest.raises(CheckpointError, match=r"Thing.space is a .*Box here, and was a .*Discrete"):
        attributes.restore(Thing(space=gymnasium.spaces.Box(0, 1)), state)
    with pytest.raises(CheckpointError, match=r"Discrete cannot be rebuilt from a checkpoint"):
        attributes.restore(Thing(), state)


# Rebuilding ---------------------------------------------------------------------------------------


def annealed(kind=policy.EpsGreedyQPolicy):
    inner = kind()
    return policy.LinearAnnealedPolicy(inner, "eps", 1.0, 0.1, 0.05, 100)


def whitening(module):
    processor = module.WhiteningNormalizerProcessor()
    batch = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    processor.process_observation(batch[0])
    processor.process_state_batch(batch)
    return processor


REBUILT = {
    "ours": policy.EpsGreedyQPolicy(0.3),
    "ours, annealed": annealed(),
    "theirs, annealed": rl_policy.LinearAnnealedPolicy(
        rl_policy.EpsGreedyQPolicy(), "eps", 1.0, 0.1, 0.05, 9
    ),
    "Gumbel": policy.BoltzmannGumbelQPolicy(2.0),
    "noise": noise.OrnsteinUhlenbeckProcess(0.15, mu=np.ones(2), size=2, sigma_min=0.1),
    "their noise": rl_random.OrnsteinUhlenbeckProcess(0.15, size=2),
    "whitening": whitening(processors),
    "their whitening": whitening(rl_processors),
    "inputs": processors.MultiInputProcessor(3),
}


@pytest.mark.parametrize("name", REBUILT)
def test_objects_are_rebuilt_whole(name):
    thing = REBUILT[name]
    description = attributes.describe(thing)
    assert same(attributes.copied(description), description)  # plain
    rebuilt = attributes.rebuild(description)
    assert type(rebuilt) is type(thing)
    assert vars(rebuilt).keys() == vars(thing).keys() - {"agent"}
    assert same(attributes.describe(rebuilt), description)


def test_a_rebuilt_policy_draws_what_the_first_would_have_drawn():
    thing, q_values = annealed(), np.zeros(5)
    thing._set_agent(agent := Thing(training=True, step=3))
    thing.inner_policy.select_action(q_values=q_values)
    rebuilt = attributes.rebuild(attributes.describe(thing))
    assert not hasattr(rebuilt, "agent")
    assert not hasattr(rebuilt.inner_policy, "agent")
    rebuilt._set_agent(agent)
    for _ in range(600):  # over two blocks of Draws
        assert rebuilt.select_action(q_values=q_values) == thing.select_action(q_values=q_values)


def test_a_normalizer_that_is_not_there_yet_is_made():
    fresh = passed_on(whitening(processors), processors.WhiteningNormalizerProcessor())
    observation = np.ones((1, 3))
    want = whitening(processors).process_state_batch(observation)
    assert same(fresh.process_state_batch(observation), want)


@pytest.mark.parametrize("thing", [Own(), annealed(Own), Thing(), gymnasium.spaces.Discrete(2)])
def test_other_classes_are_refused(thing):
    with pytest.raises(CheckpointError, match=r"(Own|Thing|Discrete) cannot be rebuilt from a che"):
        attributes.describe(thing)


def test_a_function_inside_is_refused():
    thing = policy.EpsGreedyQPolicy()
    thing.schedule = lambda step: 0.1
    with pytest.raises(CheckpointError, match=r"EpsGreedyQPolicy.schedule is of type function"):
        attributes.describe(thing)


FORGED = [
    "os:system",
    "subprocess:Popen",
    "builtins:eval",
    "rl.policy:np",
    "rl.util:AdditionalUpdatesOptimizer",
    "rl.core:Agent",
    "kerasrl_gpu.core:Agent",
    "kerasrl_gpu.policy:Policy.seed",
    "kerasrl_gpu.policy:ArgumentError",
    ["kerasrl_gpu.policy:Policy"],
    None,
]


@pytest.mark.parametrize("name", FORGED, ids=str)
def test_a_forged_class_is_refused(name):
    hidden = {"$": "object", "class": name, "state": {}}
    within = {"class": names.class_name(annealed()), "state": {"inner_policy": hidden}}
    for description in ({"class": name, "state": {}}, within):
        with pytest.raises(CheckpointError, match="cannot be rebuilt from a checkpoint"):
            attributes.rebuild(description)
