"""Losses and blends, worked out by hand."""

import numpy as np
import pytest
from keras import ops

from kerasrl_gpu import losses
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.state import Weights


def f32(values):
    return np.array(values, np.float32)


def test_huber_is_quadratic_inside_and_linear_outside():
    # delta 2:  |1| -> 1/2;  |-1| -> 1/2;  |2| -> 2 * (2 - 1) = 2;  |5| -> 2 * (5 - 1) = 8
    loss = losses.huber(f32([1, -1, 2, 5]), 2.0)
    np.testing.assert_allclose(loss, [0.5, 0.5, 2, 8], rtol=1e-6)


def test_huber_without_a_limit_is_half_the_square():
    np.testing.assert_allclose(losses.huber(f32([3, -4]), np.inf), [4.5, 8])


def test_huber_refuses_a_limit_that_clips_everything():
    with pytest.raises(ArgumentError, match="delta_clip=0"):
        losses.huber(f32([1]), 0)


def test_chosen_takes_each_rows_action():
    q = losses.chosen(f32([[1, 2, 3], [4, 5, 6]]), np.array([2, 0], np.uint8))
    np.testing.assert_allclose(q, [3, 4])


def test_blend_moves_floats_and_takes_integers():
    # 0.75 * 8 + 0.25 * 4 = 7; the seed has no halfway
    seed = ops.convert_to_tensor(np.array([5], "uint32"))
    slow = Weights([ops.convert_to_tensor(f32([8]))], [ops.convert_to_tensor(f32([0])), seed])
    fast = Weights([ops.convert_to_tensor(f32([4]))], [ops.convert_to_tensor(f32([1])), seed + 1])
    moved = losses.blend(slow, fast, 0.25)
    np.testing.assert_allclose(moved.trainable[0], [7])
    np.testing.assert_allclose(moved.non_trainable[0], [0.25])
    assert int(moved.non_trainable[1][0]) == 6


def test_mean_q_is_the_mean_of_the_largest():
    # max(1, 3) = 3, max(5, 2) = 5, mean 4
    assert float(losses.mean_q(None, f32([[1, 3], [5, 2]]))) == 4
