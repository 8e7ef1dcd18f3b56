"""Noise processes: their formulas by hand, their own generators, their states."""

import json

import numpy as np
import pytest

from kerasrl_gpu.keras_rl import rl_random
from kerasrl_gpu.random import (
    AnnealedGaussianProcess,
    Draws,
    GaussianWhiteNoiseProcess,
    OrnsteinUhlenbeckProcess,
    RandomProcess,
)


def gaussian():
    return GaussianWhiteNoiseProcess(mu=0.5, sigma=2.0, sigma_min=1.0, n_steps_annealing=4, size=3)


def ornstein_uhlenbeck():
    return OrnsteinUhlenbeckProcess(theta=0.15, mu=0.5, sigma=0.3, size=(2, 3), sigma_min=0.1)


BOTH = pytest.mark.parametrize("make", [gaussian, ornstein_uhlenbeck])


@BOTH
def test_processes_are_keras_rls(make):
    process = make()
    assert isinstance(process, getattr(rl_random, type(process).__name__))
    assert isinstance(process, AnnealedGaussianProcess)
    assert isinstance(process, RandomProcess)
    assert isinstance(process, rl_random.RandomProcess)


def test_sigma_falls_on_a_line_and_stays():
    process = gaussian()
    sigmas = []
    for _ in range(6):
        sigmas.append(process.current_sigma)
        process.sample()
    # 2 - (2 - 1) / 4 a sample, never under 1
    assert sigmas == [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]


def test_gaussian_is_mu_plus_sigma_times_the_generators_normals():
    process = gaussian()
    process.seed(7)
    noise = np.random.default_rng(7).standard_normal((256 // 3, 3))
    # draws are taken from the back of a block
    np.testing.assert_array_equal(process.sample(), 0.5 + 2.0 * noise[-1])
    np.testing.assert_array_equal(process.sample(), 0.5 + 1.75 * noise[-2])


def test_gaussian_moments():
    process = GaussianWhiteNoiseProcess(mu=[1.0, -2.0], sigma=0.5, size=2)
    process.seed(0)
    samples = np.array([process.sample() for _ in range(20_000)])
    # standard error of the mean: 0.5 / sqrt(20000) = 0.0035; of sigma: 0.0025
    np.testing.assert_allclose(samples.mean(axis=0), [1.0, -2.0], atol=0.015)
    np.testing.assert_allclose(samples.std(axis=0), 0.5, atol=0.01)
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.03


def test_ornstein_uhlenbeck_starts_at_mu():
    # keras-rl starts at N(mu, sigma): with sigma = 100 nobody would be within 1e-9 of mu
    process = OrnsteinUhlenbeckProcess(theta=0.15, mu=[1.0, 2.0], sigma=100.0, size=2)
    np.testing.assert_array_equal(process.x_prev, [1.0, 2.0])
    process.sample()
    process.reset_states()
    np.testing.assert_array_equal(process.x_prev, [1.0, 2.0])
    assert process.n_steps == 1  # the annealing goes on


def test_ornstein_uhlenbeck_without_disturbance_by_hand():
    process = OrnsteinUhlenbeckProcess(theta=0.5, mu=1.0, sigma=0.0, dt=0.1, size=1)
    process.x_prev = np.array([3.0])
    # x + 0.5 * (1 - x) * 0.1:  3 - 0.1 = 2.9;  2.9 - 0.095 = 2.805
    assert process.sample() == pytest.approx(2.9)
    assert process.sample() == pytest.approx(2.805)


def test_ornstein_uhlenbeck_spread_of_the_stationary_process():
    process = OrnsteinUhlenbeckProcess(theta=2.0, sigma=0.6, dt=0.1, size=500)
    process.seed(3)
    for _ in range(100):
        process.sample()
    samples = np.array([process.sample() for _ in range(200)])
    # x <- 0.8 x + 0.6 sqrt(0.1) N: variance 0.036 / (1 - 0.64) = 0.1, deviation 0.316
    assert samples.std() == pytest.approx(0.1**0.5, rel=0.03)
    assert samples.mean() == pytest.approx(0.0, abs=0.02)


def test_a_sample_may_be_written_into():
    process = ornstein_uhlenbeck()
    process.sample()[:] = 1e9
    assert np.abs(process.x_prev).max() < 1e3


@BOTH
def test_seed_repeats_and_another_seed_differs(make):
    def run(seed):
        process = make()
        process.seed(seed)
        return np.array([process.sample() for _ in range(200)])  # more than one block

    np.testing.assert_array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))


@BOTH
def test_unseeded_processes_differ_and_leave_numpys_generator_alone(make):
    before = np.random.get_state()  # noqa: NPY002 - read only
    assert not np.array_equal(make().sample(), make().sample())
    after = np.random.get_state()  # noqa: NPY002
    assert before[2] == after[2]
    np.testing.assert_array_equal(before[1], after[1])


@BOTH
@pytest.mark.parametrize("samples", [0, 1, 42, 85, 100])
def test_state_goes_through_json_and_goes_on(make, samples):
    process, resumed = make(), make()
    process.seed(5)
    for _ in range(samples):
        process.sample()
    resumed.set_state(json.loads(json.dumps(process.get_state())))
    assert resumed.current_sigma == process.current_sigma
    for _ in range(100):
        np.testing.assert_array_equal(resumed.sample(), process.sample())
    assert resumed.get_state() == process.get_state()


def test_state_holds_the_annealing_counter():
    process = gaussian()
    process.sample()
    assert process.get_state()["n_steps"] == 1
    assert RandomProcess().get_state() == {}


def test_a_process_of_ones_own_on_the_annealed_base():
    class Mine(AnnealedGaussianProcess):
        def sample(self):
            return self.current_sigma

    process = Mine(mu=0.0, sigma=1.0, sigma_min=None, n_steps_annealing=1)
    process.seed(0)
    process.set_state(process.get_state())
    assert process.sample() == 1.0


@pytest.mark.parametrize(
    "kind, mean", [("random", 0.5), ("gumbel", 0.5772), ("standard_normal", 0)]
)
def test_draws_have_the_mean_of_their_kind(kind, mean):
    draws = Draws(kind, seed=0)
    numbers = [draws.next() for _ in range(20_000)]
    assert len(set(numbers)) == 20_000
    assert np.mean(numbers) == pytest.approx(mean, abs=0.03)
    assert type(numbers[0]) is float


def test_draws_larger_than_a_block_come_one_at_a_time():
    draws = Draws("random", (30, 40), seed=0)
    assert draws.next().shape == (30, 40)
    assert draws.get_state()["used"] == 1
