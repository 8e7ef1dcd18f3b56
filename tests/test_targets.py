"""Targets, worked out by hand."""

import numpy as np
import pytest

from kerasrl_gpu import targets
from kerasrl_gpu.errors import ShapeError


def f32(values):
    return np.array(values, np.float32)


def test_max_q_takes_the_targets_own_maximum():
    # row 0                                     1 + 0.5 * max(40, 20) = 21
    # row 1  terminated, nothing bootstrapped:  2 + 0.0 * 7           =  2
    y = targets.max_q(f32([1, 2]), f32([0.5, 0]), f32([[40, 20], [7, 7]]))
    np.testing.assert_allclose(y, [21, 2], rtol=0, atol=1e-6)


def test_double_q_picks_online_and_prices_with_target():
    # row 0  online prefers a1 (3 > 1), target prices a1 at 20:  1 + 0.5 * 20 = 11
    #        (plain DQN would take the target's own maximum:     1 + 0.5 * 40 = 21)
    # row 1  terminated, so nothing is bootstrapped:             2 + 0.0 *  7 =  2
    y = targets.double_q(
        reward=f32([1, 2]),
        discount=f32([0.5, 0]),
        q_next_online=f32([[1, 3], [9, 0]]),
        q_next_target=f32([[40, 20], [7, 7]]),
    )
    np.testing.assert_allclose(y, [11, 2], rtol=0, atol=1e-6)


def test_double_q_gives_ties_to_the_lowest_action():
    # both actions look alike online; a0 is priced at 5, a1 at 9:  0 + 1 * 5 = 5
    y = targets.double_q(f32([0]), f32([1]), f32([[2, 2]]), f32([[5, 9]]))
    np.testing.assert_allclose(y, [5])


def test_policy_value_discounts_the_target_critic():
    # 3 + 0.9 * 10 = 12 and, terminated, 3 + 0 * 10 = 3
    y = targets.policy_value(f32([3, 3]), f32([0.9, 0]), f32([10, 10]))
    np.testing.assert_allclose(y, [12, 3], rtol=1e-6)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ShapeError, match=r"'BA' came as \(2, 1\)"):
        targets.double_q(f32([1, 2]), f32([1, 1]), f32([[1, 2], [3, 4]]), f32([[1], [2]]))
    with pytest.raises(ShapeError, match="'B' came as"):
        targets.policy_value(f32([1, 2]), f32([1, 1]), f32([[1], [2]]))
