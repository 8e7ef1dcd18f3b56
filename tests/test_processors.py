"""keras-rl's processors, mended: what they learn, when, and that it can be saved."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu import keras_rl
from kerasrl_gpu.errors import ObservationError, ShapeError
from kerasrl_gpu.processors import (
    MultiInputProcessor,
    Processor,
    WhiteningNormalizer,
    WhiteningNormalizerProcessor,
)


def test_processors_are_keras_rls():
    theirs = keras_rl.rl_processors
    assert Processor is keras_rl.Processor
    assert isinstance(MultiInputProcessor(2), theirs.MultiInputProcessor)
    assert isinstance(WhiteningNormalizerProcessor(), theirs.WhiteningNormalizerProcessor)
    assert isinstance(WhiteningNormalizer((2,)), theirs.WhiteningNormalizer)


def test_whitening_by_hand():
    processor = WhiteningNormalizerProcessor()
    for observation in ([1.0, 10.0], [3.0, 10.0]):
        np.testing.assert_array_equal(processor.process_observation(observation), observation)
    # means 2 and 10; deviations 1 and 0, the second raised to eps = 0.01
    whitened = processor.process_state_batch(np.float32([[[1, 10], [5, 10.02]]]))
    np.testing.assert_allclose(whitened, [[[-1, 0], [3, 2]]], atol=1e-4)
    assert whitened.dtype == np.float32


def test_whitening_learns_from_no_replay_batch():
    # keras-rl learns from each sampled batch again
    processor = WhiteningNormalizerProcessor()
    processor.process_observation(np.float32([1, 2]))
    before = processor.get_state()
    processor.process_state_batch(np.full((4, 3, 2), 100, dtype="float32"))
    assert processor.get_state() == before


def test_whitening_learns_nothing_in_test():
    processor = WhiteningNormalizerProcessor()
    processor.process_observation(np.float32([1, 2]))
    before = processor.get_state()
    processor.training = False
    processor.process_observation(np.float32([100, 100]))
    assert processor.get_state() == before


def test_whitening_before_the_first_observation_changes_nothing():
    processor = WhiteningNormalizerProcessor()
    batch = np.arange(6, dtype="float64").reshape(1, 2, 3)
    np.testing.assert_array_equal(processor.process_state_batch(batch), batch)
    assert processor.process_state_batch(batch.astype(object)).dtype == np.float32


def test_whitening_step_goes_through_keras_rls_process_step():
    processor = WhiteningNormalizerProcessor()
    came = processor.process_step(np.float32([1, 2]), 1.0, False, {})
    np.testing.assert_array_equal(came[0], [1, 2])
    assert processor.get_state()["normalizer"]["count"] == 1


def test_whitening_of_a_small_spread_around_a_large_mean():
    # sum of squares: 1e16 + ..., where float64 steps by 2; keras-rl finds eps for the deviation
    normalizer = WhiteningNormalizer((1,))
    for value in (1e8 - 1, 1e8 + 1):
        normalizer.update(np.array([value]))
    np.testing.assert_allclose(normalizer.mean, 1e8, rtol=1e-15)
    np.testing.assert_allclose(normalizer.std, 1.0, rtol=1e-9)


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_batches_in_any_split_give_the_statistics_of_all_rows(sizes, seed):
    rows = np.random.default_rng(seed).normal(3.0, 2.0, (sum(sizes), 2, 3))
    normalizer = WhiteningNormalizer((2, 3))
    start = 0
    for size in sizes:
        normalizer.update(rows[start : start + size])
        start += size
    if not len(rows):
        np.testing.assert_array_equal(normalizer.std, np.ones((2, 3)))
        return
    np.testing.assert_allclose(normalizer.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.std, np.maximum(rows.std(axis=0), 0.01), rtol=1e-9)
    np.testing.assert_allclose(normalizer.denormalize(normalizer.normalize(rows)), rows)


@pytest.mark.parametrize("observations", [0, 1, 7])
def test_whitening_state_goes_through_json_and_goes_on(observations):
    generator = np.random.default_rng(0)
    processor, resumed = WhiteningNormalizerProcessor(), WhiteningNormalizerProcessor()
    for _ in range(observations):
        processor.process_observation(generator.normal(size=3))
    resumed.set_state(json.loads(json.dumps(processor.get_state())))
    batch = generator.normal(size=(2, 1, 3))
    for _ in range(3):
        np.testing.assert_array_equal(
            resumed.process_state_batch(batch), processor.process_state_batch(batch)
        )
        observation = generator.normal(size=3)
        processor.process_observation(observation)
        resumed.process_observation(observation)
    assert resumed.get_state() == processor.get_state()


def test_whitening_refuses_another_shape_and_nan():
    normalizer = WhiteningNormalizer((2,))
    with pytest.raises(ShapeError, match=r"shape \(3,\) came"):
        normalizer.update(np.zeros(3))
    with pytest.raises(ObservationError, match="NaN or infinity"):
        normalizer.update(np.array([0.0, np.nan]))
    np.testing.assert_array_equal(normalizer.mean, [0, 0])


def test_parts_of_one_shape_are_split_along_axis_2():
    batch = np.arange(12, dtype="uint8").reshape(1, 2, 2, 3)
    first, second = MultiInputProcessor(2).process_state_batch(batch)
    np.testing.assert_array_equal(first, [[[0, 1, 2], [6, 7, 8]]])
    np.testing.assert_array_equal(second, [[[3, 4, 5], [9, 10, 11]]])
    assert first.dtype == np.uint8


@pytest.mark.parametrize("shapes", [((2,), (2,)), ((2,), (3, 1))])
@pytest.mark.parametrize("as_objects", [False, True])
def test_tuples_become_one_batch_a_part(shapes, as_objects):
    generator = np.random.default_rng(0)
    states = [[tuple(generator.normal(size=s) for s in shapes) for _ in range(3)] for _ in range(2)]
    batch = np.array(states, dtype=object) if as_objects else states
    parts = MultiInputProcessor(2).process_state_batch(batch)
    for index, (part, shape) in enumerate(zip(parts, shapes)):
        assert part.shape == (2, 3, *shape)
        assert part.dtype == np.float64
        np.testing.assert_array_equal(part[1, 2], states[1][2][index])


def test_dictionaries_become_one_batch_a_name():
    states = [
        [{"a": np.array([1.0]), "b": np.array([2.0])}],
        [{"a": np.array([3.0]), "b": np.array([4.0])}],
    ]
    parts = MultiInputProcessor(2).process_state_batch(np.array(states, dtype=object))
    np.testing.assert_array_equal(parts["a"], [[[1]], [[3]]])
    np.testing.assert_array_equal(parts["b"], [[[2]], [[4]]])


def test_a_wrong_number_of_parts_is_refused():
    with pytest.raises(ShapeError, match="nb_inputs=3"):
        MultiInputProcessor(3).process_state_batch(np.zeros((1, 2, 2, 4)))
    with pytest.raises(ShapeError, match="nb_inputs=3"):
        MultiInputProcessor(3).process_state_batch(np.zeros((1, 3)))
