"""Snapshots of environments: taken in mid-episode, restored in another process, then the same."""

import os
import pickle
import subprocess
import sys
import types
import warnings
from collections import deque
from pathlib import Path

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers

from kerasrl_gpu import snapshots
from kerasrl_gpu.errors import SnapshotError

gym.register_envs(ale_py)
BEFORE, AFTER = 41, 200


class Counter:
    """keras-rl's old environment API, with a generator, a space and a mutable list of its own."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, limit=7):
        self.limit, self.random, self.seen = limit, np.random.RandomState(3), deque(maxlen=4)
        self.alias = self.seen
        self.count = 0

    def reset(self):
        self.count = 0
        return np.array([self.random.normal()])

    def step(self, action):
        self.count += 1
        self.seen.append(self.random.normal() + action)
        return np.array(self.alias), float(self.count), self.count == self.limit, {}


class OwnState(gym.Env):
    """Keeps its state where nobody finds it, and hands it out; but not its generators."""

    action_space, observation_space = gym.spaces.Discrete(2), gym.spaces.Box(-9, 9, (1,))

    def __init__(self):
        position = [0.0]
        self.peek, self.poke = lambda: position[0], lambda value: position.__setitem__(0, value)

    def get_state(self):
        return {"position": self.peek()}

    def set_state(self, state):
        self.poke(state["position"])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.poke(self.np_random.normal())
        return np.array([self.peek()], np.float32), {}

    def step(self, action):
        self.poke(0.9 * self.peek() + self.np_random.normal() + action)
        return np.array([self.peek()], np.float32), self.peek(), abs(self.peek()) > 3, False, {}


def game(name, **options):
    return lambda: gym.make(f"ALE/{name}-v5", max_num_frames_per_episode=110, **options)


def atari():
    env = wrappers.AtariPreprocessing(game("Breakout", frameskip=1)(), noop_max=9)
    return wrappers.FrameStackObservation(env, 4)


def usual(name, **options):
    def make():
        env = wrappers.RecordEpisodeStatistics(gym.make(name, **options))
        return wrappers.NormalizeReward(wrappers.NormalizeObservation(env))

    return make


def wrapped(wrapper, *args, name="CartPole-v1", **options):
    return lambda: wrapper(gym.make(name), *args, **options)


def unit(x):
    return x


def shown():
    env = gym.make("FrozenLake-v1", render_mode="rgb_array")
    env.metadata = {**env.metadata, "render_fps": 100_000}  # HumanRendering waits for its frames
    return wrappers.HumanRendering(env)


ENVIRONMENTS = {
    **{
        name: lambda name=name: gym.make(name)
        for name in ("Acrobot-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "Pendulum-v1")
    },
    "CartPole-v1": usual("CartPole-v1"),
    "MountainCar-v0": lambda: gym.make("MountainCar-v0", max_episode_steps=100),
    "MountainCarContinuous-v0": usual("MountainCarContinuous-v0"),
    "FrozenLake-v1": lambda: gym.make("FrozenLake-v1", is_slippery=True),
    "HalfCheetah-v5": usual("HalfCheetah-v5", max_episode_steps=90),
    "Hopper-v5": usual("Hopper-v5"),
    "Ant-v5": usual("Ant-v5"),
    "Humanoid-v5": usual("Humanoid-v5"),
    "Ant-v4": lambda: gym.make("Ant-v4"),
    "Humanoid-v4": lambda: gym.make("Humanoid-v4"),
    "Pusher-v5": lambda: gym.make("Pusher-v5"),
    "Pong, sticky": game("Pong", frameskip=3, repeat_action_probability=0.9),
    "Seaquest, ram": game("Seaquest", obs_type="ram", frameskip=(2, 5)),
    "Pong, continuous": game("Pong", continuous=True),
    "Breakout, preprocessed": atari,
    "old API": Counter,
    "own state": OwnState,
    "AddWhiteNoise": lambda: wrappers.AddRenderObservation(
        wrappers.AddWhiteNoise(gym.make("FrozenLake-v1", render_mode="rgb_array"), 0.2)
    ),
    "Autoreset": wrapped(wrappers.Autoreset),
    "ClipAction": wrapped(wrappers.ClipAction, name="Pendulum-v1"),
    "ClipReward": wrapped(wrappers.ClipReward, -1, 0.5),
    "DelayObservation": wrapped(wrappers.DelayObservation, 3),
    "DiscretizeAction": wrapped(wrappers.DiscretizeAction, 5, name="Pendulum-v1"),
    "DiscretizeObservation": wrapped(wrappers.DiscretizeObservation, 7, name="Pendulum-v1"),
    "DtypeObservation": wrapped(wrappers.DtypeObservation, np.float64),
    "FilterObservation": lambda: wrappers.FilterObservation(
        wrappers.TimeAwareObservation(gym.make("CartPole-v1"), flatten=False), ["time"]
    ),
    "FlattenObservation": wrapped(wrappers.FlattenObservation, name="Blackjack-v1"),
    "FrameStackObservation": wrapped(wrappers.FrameStackObservation, 3, padding_type="zero"),
    "HumanRendering": shown,
    "MaxAndSkipObservation": wrapped(wrappers.MaxAndSkipObservation, 2),
    "OrderEnforcing": wrapped(wrappers.OrderEnforcing),
    "PassiveEnvChecker": wrapped(wrappers.PassiveEnvChecker),
    "RecordEpisodeStatistics": wrapped(wrappers.RecordEpisodeStatistics, buffer_length=3),
    "RenderCollection": lambda: gym.make("CartPole-v1", render_mode="rgb_array_list"),
    "RepeatAction": wrapped(wrappers.RepeatAction, 3),
    "RescaleAction": wrapped(wrappers.RescaleAction, -1, 1, name="Pendulum-v1"),
    "RescaleObservation": wrapped(wrappers.RescaleObservation, 0, 1, name="MountainCar-v0"),
    "ReshapeObservation": wrapped(wrappers.ReshapeObservation, (2, 2)),
    "StickyAction": wrapped(wrappers.StickyAction, 0.4, (1, 4)),
    "TimeAwareObservation": wrapped(wrappers.TimeAwareObservation),
    "TimeLimit": wrapped(wrappers.TimeLimit, 13),
    "TransformAction": wrapped(wrappers.TransformAction, unit, None),
    "TransformObservation": wrapped(wrappers.TransformObservation, unit, None),
    "TransformReward": wrapped(wrappers.TransformReward, unit),
}


def play(env, steps):
    """Everything that `steps` random steps show; actions come from the environment's own space."""
    seen = []
    for _ in range(steps):
        action = env.action_space.sample()
        result = env.step(action)
        if len(result) == 5:
            result[4].get("episode", {}).pop("t", None)  # seconds
        seen.append((action, *result))
        if result[2] or (len(result) == 5 and result[3]):
            seen.append(env.reset())
    return seen


def continue_there():
    """What the other process does: restore into a fresh environment, and play."""
    folder = Path(sys.argv[1])
    taken = pickle.loads((folder / "taken").read_bytes())  # noqa: S301 - the test's own file
    played = {}
    for name, snapshot in taken.items():
        env = ENVIRONMENTS[name]()
        snapshots.restore(env, snapshot)
        played[name] = play(env, AFTER)
    loaded = {"keras", "jax", "tensorflow"} & set(sys.modules)
    (folder / "played").write_bytes(pickle.dumps((played, loaded)))


@pytest.fixture(scope="module")
def both(backend, tmp_path_factory):
    """{name: (what the original saw, what the restored one saw)}, and backends loaded there."""
    if backend == "jax":
        pytest.skip("no backend takes part: the other run of the suite covers this")
    folder = tmp_path_factory.mktemp("snapshots")
    taken, here = {}, {}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.chdir(folder)  # MuJoCo writes its log where it stands
        for name, make in ENVIRONMENTS.items():
            env = make()
            snapshots.prepare(env)
            env.reset(seed=3) if isinstance(env, gym.Env) else env.reset()
            env.action_space.seed(5)
            play(env, BEFORE)
            taken[name] = snapshots.take(env)
            here[name] = play(env, AFTER)
    (folder / "taken").write_bytes(pickle.dumps(taken))
    root, code = Path(__file__).parent, "import test_snapshots; test_snapshots.continue_there()"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(folder)],
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": f"{root.parent}{os.pathsep}{root}"},
        cwd=folder,
        capture_output=True,
    )
    there, loaded = pickle.loads((folder / "played").read_bytes())  # noqa: S301
    return {name: (here[name], there[name]) for name in here}, loaded


def same(one, other):
    """Equal to the last bit, in types as well."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return one == other


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_episode_goes_on_in_another_process(both, name):
    here, there = both[0][name]
    assert len(here) >= AFTER
    differing = [step for step, pair in enumerate(zip(here, there)) if not same(*pair)]
    assert not differing, f"first at step {differing[0]}"


def test_every_kind_of_environment_was_reset_on_the_way(both):
    resets = {name: len(here) - AFTER for name, (here, _) in both[0].items()}
    must = ["CartPole-v1", "Blackjack-v1", "Hopper-v5", "Humanoid-v5", "Pong, sticky", "old API"]
    assert all(resets[name] for name in must), resets


def test_snapshots_load_no_backend(both):
    assert not both[1]


def test_taking_changes_nothing():
    env, other = usual("CartPole-v1")(), usual("CartPole-v1")()
    for one in (env, other):
        one.reset(seed=3)
        one.action_space.seed(5)
        play(one, BEFORE)
    for _ in range(3):
        snapshots.take(env)
    assert same(play(env, 50), play(other, 50))


def test_a_snapshot_does_not_follow_the_environment():
    env = wrapped(wrappers.FrameStackObservation, 3)()
    env.reset(seed=3)
    env.action_space.seed(5)
    play(env, 7)
    snapshot = snapshots.take(env)
    first = play(env, 50)
    for _ in range(2):  # nor does the environment that it was restored into change it
        snapshots.restore(env, snapshot)
        assert same(play(env, 50), first)


def test_what_was_shared_stays_shared():
    env, fresh = Counter(), Counter()
    play(env, 5)
    snapshot = snapshots.take(env)
    fresh.alias = None
    snapshots.restore(fresh, snapshot)
    assert fresh.alias is fresh.seen
    assert fresh.seen is not env.seen
    assert fresh.seen.maxlen == 4


def test_keeping_a_journal_changes_nothing():
    env, other = game("Seaquest")(), game("Seaquest")()
    snapshots.prepare(env)
    seen = []
    for one in (env, other):
        seen.append([one.reset(seed=3), one.action_space.seed(5), *play(one, 90)])
    assert same(*seen)


def test_a_recorder_goes_on_counting_and_leaves_its_frames_behind(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "moviepy", types.ModuleType("moviepy"))
    env, other = (
        wrappers.RecordVideo(
            gym.make("FrozenLake-v1", render_mode="rgb_array"),
            str(tmp_path / name),
            step_trigger=lambda step: step == 1,
            video_length=100,
        )
        for name in ("then", "now")
    )
    env.reset(seed=1)
    for _ in range(3):
        env.step(0)  # along the left edge there is no hole
    assert env.recorded_frames
    snapshots.restore(other, snapshots.take(env))
    assert (other.step_id, other.episode_id) == (env.step_id, env.episode_id) == (2, 0)
    assert other.recorded_frames == []
    assert other.video_folder.endswith("now")
    env.recording, env.recorded_frames = False, []  # else it warns of a video that nobody saved


# What cannot be saved -----------------------------------------------------------------------------


class World:
    """Stands for a simulator's handle."""


class Lander(gym.Env):
    action_space, observation_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self):
        self.world = World()


def test_a_state_out_of_reach_is_refused_by_name():
    sentence = r"Lander keeps part of its state in world, which is of type .*World.*get_state\(\)"
    with pytest.raises(SnapshotError, match=sentence):
        snapshots.take(wrappers.TimeLimit(Lander(), 10))


def test_a_get_state_that_only_a_wrapper_passes_on_does_not_count():
    class PassesOn(gym.Wrapper):
        def __getattr__(self, name):
            return getattr(self.env, name)

    snapshot = snapshots.take(PassesOn(OwnState()))
    assert [layer["own"] for layer in snapshot["layers"]] == [None, {"position": 0.0}]


def test_a_get_state_that_is_not_plain_is_refused():
    env = OwnState()
    env.peek = World
    with pytest.raises(SnapshotError, match=r"OwnState.get_state\(\) returned.*it\['position'\]"):
        snapshots.take(env)


def test_a_view_of_other_memory_is_refused():
    env = Counter()
    env.grid = np.zeros((3, 3))
    env.row = env.grid[1]
    with pytest.raises(SnapshotError, match=r"row, which is a view of the memory of grid"):
        snapshots.take(env)


def test_an_atari_game_without_its_journal_is_refused():
    env = game("Pong")()
    env.reset(seed=1)
    for prepare in (lambda: None, lambda: snapshots.prepare(env)):  # too late for this episode
        prepare()
        with pytest.raises(SnapshotError, match=r"Call kerasrl_gpu.snapshots.prepare\(env\) befo"):
            snapshots.take(env)
    env.reset()
    snapshots.take(env)
    env.unwrapped.restore_state(env.unwrapped.clone_state())  # as planners do
    with pytest.raises(SnapshotError, match="recorded from the start"):
        snapshots.take(env)


def test_a_changed_mujoco_model_is_refused():
    env, other = gym.make("Hopper-v5"), gym.make("Hopper-v5")
    env.reset(seed=1)
    other.unwrapped.model.body_mass[1] *= 2
    with pytest.raises(SnapshotError, match=r"MuJoCo model of HopperEnv differs"):
        snapshots.restore(other, snapshots.take(env))


# What does not fit --------------------------------------------------------------------------------

FITS_NOT = {
    r"another environment: Acrobot-v1, and was CartPole-v1 when": (
        lambda: gym.make("CartPole-v1"),
        lambda: gym.make("Acrobot-v1", max_episode_steps=500),
    ),
    r"TimeLimit was made with max_episode_steps=200, and was 500": (
        lambda: gym.make("CartPole-v1"),
        lambda: gym.make("CartPole-v1", max_episode_steps=200),
    ),
    r"FrozenLakeEnv was made with is_slippery=False, and was True": (
        lambda: gym.make("FrozenLake-v1", is_slippery=True),
        lambda: gym.make("FrozenLake-v1", is_slippery=False),
    ),
    r"HopperEnv was made with forward_reward_weight=2.0, and was 1.0": (
        lambda: gym.make("Hopper-v5", forward_reward_weight=1.0),
        lambda: gym.make("Hopper-v5", forward_reward_weight=2.0),
    ),
    r"layer 0 from outside is .*ClipReward, and was .*TimeLimit": (
        lambda: gym.make("CartPole-v1"),
        lambda: wrappers.ClipReward(gym.make("CartPole-v1"), 0, 1),
    ),
}


@pytest.mark.parametrize("sentence", FITS_NOT)
def test_the_first_difference_is_named(sentence):
    env, other = (make() for make in FITS_NOT[sentence])
    with pytest.raises(SnapshotError, match=sentence):
        snapshots.restore(other, snapshots.take(env))


def test_functions_are_told_by_their_names():
    scripted = types.FunctionType(unit.__code__, {"__name__": "__main__"})  # as a script has it
    snapshot = snapshots.take(wrapped(wrappers.TransformReward, unit)())
    snapshots.restore(wrapped(wrappers.TransformReward, scripted)(), snapshot)
    with pytest.raises(SnapshotError, match=r"made with func='<abs>', and was '<unit>'"):
        snapshots.restore(wrapped(wrappers.TransformReward, abs)(), snapshot)


def test_a_view_into_mujoco_stays_one():
    env, other = gym.make("Hopper-v5"), gym.make("Hopper-v5")
    env.reset(seed=1)
    for one in (env.unwrapped, other.unwrapped):
        one.height = one.data.qpos[1:2]
    snapshots.restore(other, snapshots.take(env))
    assert same(other.unwrapped.height, env.unwrapped.height)
    other.unwrapped.data.qpos[1] = 7
    assert other.unwrapped.height[0] == 7


def test_a_layer_more_is_named():
    env, other = Counter(), Counter()
    env.env = Counter()
    with pytest.raises(SnapshotError, match=r"1 layers, and was 2, wrappers included"):
        snapshots.restore(other, snapshots.take(env))


def test_a_window_is_no_difference():
    env = gym.make("FrozenLake-v1")
    env.reset(seed=1)
    other = gym.make("FrozenLake-v1", render_mode="rgb_array")
    snapshots.restore(other, snapshots.take(env))
    assert other.unwrapped.render_mode == "rgb_array"


def test_a_changed_argument_that_nobody_recorded_is_said():
    with pytest.warns(UserWarning, match=r"Counter.limit is 9 here and was 7 when"):
        snapshots.restore(other := Counter(limit=9), snapshots.take(Counter(limit=7)))
    assert other.limit == 7


def test_the_time_of_an_episode_is_what_it_has_lasted(monkeypatch):
    env, other = (wrapped(wrappers.RecordEpisodeStatistics)() for _ in range(2))
    clock = iter([100.0, 107.0, 5000.0])  # reset; take after 7 s; restore on another machine
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    env.reset(seed=1)
    snapshots.restore(other, snapshots.take(env))
    assert other.episode_start_time == 5000.0 - 7.0
