"""The loop's contract: what it calls in which order, with what, whatever the environment does."""

import gc
import os
import signal
import threading
import time
import warnings
from types import SimpleNamespace

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from kerasrl_gpu import DeviceMemory, DQNAgent
from kerasrl_gpu.callbacks import Callback
from kerasrl_gpu.errors import ArgumentError, NotCompiled, ObservationError
from kerasrl_gpu.keras_rl import Processor
from kerasrl_gpu.measures import Metrics

OBSERVATION, ACTIONS = Box(-np.inf, np.inf, (1,)), Discrete(2)
NEVER = 10**9


class Counter(gymnasium.Env):
    """Shows how many steps this episode has had; it ends, or is cut, after `length`."""

    observation_space, action_space = OBSERVATION, ACTIONS

    def __init__(self, length=3, cut=False, calls=None):
        self.length, self.cut = length, cut
        self.calls = [] if calls is None else calls

    def look(self):
        return np.array([self.n], np.float32)

    def reset(self, *, seed=None, options=None):
        self.calls.append("reset" if seed is None else f"reset {seed}")
        self.n = 0
        return self.look(), {}

    def step(self, action):
        self.n += 1
        self.calls.append(f"env {action}")
        done = self.n >= self.length
        return self.look(), 1.0, done and not self.cut, done and self.cut, {}


class Old:
    """keras-rl's environments: no class of Gymnasium, 4 values a step, a bare observation."""

    observation_space, action_space = OBSERVATION, ACTIONS

    def __init__(self, length=3, info=None, observe=lambda n: np.array([n], np.float32)):
        self.length, self.info, self.observe = length, info or {}, observe

    def reset(self):
        self.n = 0
        return self.observe(0)

    def step(self, action):
        self.n += 1
        return self.observe(self.n), 1.0, self.n >= self.length, dict(self.info)


class WithInfo(Old):
    """A class of nobody's, with Gymnasium's values all the same."""

    def reset(self, seed=None):
        return super().reset(), {"a": 1}

    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward, False, done, info


def small_model(window=1, shape=(1,), outputs=2):
    start = keras.initializers.GlorotUniform(seed=0)
    return keras.Sequential(
        [
            keras.Input((window, *shape)),
            keras.layers.Flatten(),
            keras.layers.Dense(outputs, kernel_initializer=start),
        ]
    )


class Stub(DQNAgent):
    """Decides and learns nothing: always takes action 1, and notes what it is called with."""

    def __init__(self, calls=None, **options):
        options = {"memory": DeviceMemory(50), **options}
        super().__init__(small_model(), nb_actions=2, **options)
        self.compiled = True
        self.calls = [] if calls is None else calls
        self.observations, self.recorded = [], []

    def forward(self, observation):
        self.calls.append(f"forward {np.ravel(observation)[0]:g}")
        self.observations.append(observation)
        return 1

    def backward(self, reward, terminal):
        self.calls.append(f"backward {reward:g} {terminal}")
        self.recorded.append((reward, terminal, terminal and self.truncated))
        return [float(self.step)]

    def reset_states(self):
        self.calls.append("reset states")


class Notes(Callback):
    """Writes down every hook; `logs` keeps what came with them, by hook."""

    def __init__(self, calls=None):
        super().__init__()
        self.calls = [] if calls is None else calls
        self.logs = {}

    def note(self, hook, *args, logs):
        self.calls.append(" ".join([hook, *map(str, args)]))
        self.logs.setdefault(hook, []).append(dict(logs))

    def on_train_begin(self, logs=None):
        self.note("train begin", logs=logs)

    def on_train_end(self, logs=None):
        self.note("train end", logs=logs)

    def on_episode_begin(self, episode, logs=None):
        self.note("episode begin", episode, logs=logs)

    def on_episode_end(self, episode, logs=None):
        self.note("episode end", episode, logs=logs)

    def on_step_begin(self, episode_step, logs=None):
        self.note("step begin", episode_step, logs=logs)

    def on_step_end(self, episode_step, logs=None):
        self.note("step end", episode_step, logs=logs)

    def on_action_begin(self, action, logs=None):
        self.note("action begin", action, logs=logs)

    def on_action_end(self, action, logs=None):
        self.note("action end", action, logs=logs)


class At(Callback):
    """Does something at the end of the given step, counted over the run."""

    def __init__(self, step, act):
        super().__init__()
        self.left, self.act = step, act

    def on_step_end(self, episode_step, logs=None):
        self.left -= 1
        if self.left == 0:
            self.act(self.agent)


def fit(agent, env, nb_steps, **options):
    return agent.fit(env, nb_steps, **{"verbose": 0, **options})


def run_test(agent, env, nb_episodes=1, **options):
    return agent.test(env, nb_episodes, **{"verbose": 0, "visualize": False, **options})


# Order and logs --------------------------------------------------------------------------------


def episode(number, steps, ended):
    """Every call of an episode of `Counter`, as keras-rl's loop makes them."""
    calls = [f"episode begin {number}", "reset states", "reset"]
    for step in range(steps):
        over = ended and step == steps - 1
        calls += [
            f"step begin {step}",
            f"forward {step}",
            "action begin 1",
            "env 1",
            "action end 1",
            f"backward 1 {over}",
            f"step end {step}",
        ]
    if ended:  # the last observation, which nobody acts on, and only then the end
        calls += [f"forward {steps}", "backward 0 False", f"episode end {number}"]
    return calls


def test_fit_calls_in_keras_rls_order():
    calls = []
    fit(Stub(calls), Counter(2, calls=calls), 3, callbacks=[Notes(calls)])
    assert calls == [
        "train begin",
        *episode(0, 2, ended=True),
        *episode(1, 1, ended=False),
        "train end",
    ]


def test_test_calls_in_keras_rls_order():
    calls = []
    run_test(Stub(calls), Counter(2, calls=calls), 2, callbacks=[Notes(calls)])
    assert calls == [
        "train begin",
        *episode(0, 2, ended=True),
        *episode(1, 2, ended=True),
        "train end",
    ]


def test_fit_gives_hooks_keras_rls_logs():
    # 3 environment steps an episode, two an action: rewards 2 and 1, two steps to the agent
    notes = Notes()
    fit(Stub(), Counter(3), 3, action_repetition=2, callbacks=[notes])
    first, second, third = notes.logs["step end"]
    assert set(first) == {"action", "observation", "reward", "metrics", "episode", "info"}
    assert [logs["reward"] for logs in (first, second, third)] == [2.0, 1.0, 2.0]
    assert [logs["observation"][0] for logs in (first, second, third)] == [2, 3, 2]
    assert [logs["episode"] for logs in (first, second, third)] == [0, 0, 1]
    assert [logs["metrics"] for logs in (first, second, third)] == [[0.0], [1.0], [2.0]]
    assert first["action"] == 1
    assert first["info"] == {}
    (ended,) = notes.logs["episode end"]
    assert ended == {"episode_reward": 3.0, "nb_episode_steps": 2, "nb_steps": 2}
    assert notes.logs["train end"] == [{"did_abort": False, "completed": True, "reason": None}]
    assert notes.params == {"nb_steps": 3}
    for hook in ("train begin", "episode begin", "step begin", "action begin", "action end"):
        assert set(map(str, notes.logs[hook])) == {"{}"}


def test_test_gives_hooks_keras_rls_logs():
    notes, agent = Notes(), Stub()
    agent.step = 77
    during = []
    watch = At(1, lambda agent: during.append((agent.step, agent.training)))
    history = run_test(agent, Counter(3), 2, action_repetition=2, callbacks=[notes, watch])
    assert all("metrics" not in logs for logs in notes.logs["step end"])
    assert [logs["reward"] for logs in notes.logs["step end"]] == [2.0, 1.0, 2.0, 1.0]
    assert notes.logs["episode end"] == [{"episode_reward": 3.0, "nb_steps": 2}] * 2
    assert notes.params == {"nb_episodes": 2}
    assert during == [(0, False)]
    assert agent.step == 77
    assert history.history == {"episode_reward": [3.0, 3.0], "nb_steps": [2, 2]}


def test_history_has_an_entry_an_episode():
    history = fit(Stub(), Counter(2), 5)
    assert history.history == {
        "episode_reward": [2.0, 2.0],
        "nb_episode_steps": [2, 2],
        "nb_steps": [2, 4],
    }
    assert history.completed
    assert history.reason is None


def test_fit_starts_at_step_0_again_and_leaves_the_callers_list_alone():
    agent, callbacks = Stub(), [Notes()]
    fit(agent, Counter(2), 5, callbacks=callbacks, verbose=1, visualize=False)
    assert agent.step == 5
    fit(agent, Counter(2), 2, callbacks=callbacks, verbose=2)
    assert agent.step == 2
    assert len(callbacks) == 1
    assert agent.training
    assert not agent.in_loop


def test_no_steps_and_no_episodes_begin_and_end_only():
    for run, count in ((fit, 0), (run_test, 0)):
        calls = []
        history = run(Stub(calls), Counter(2, calls=calls), count, callbacks=[Notes(calls)])
        assert calls == ["train begin", "train end"]
        assert history.completed


# Where episodes end ----------------------------------------------------------------------------


ENDINGS = {
    "the end": (lambda: Counter(2), {}, "terminated"),
    "a cut": (lambda: Counter(2, cut=True), {}, "truncated"),
    "TimeLimit": (lambda: TimeLimit(Counter(99), 2), {}, "truncated"),
    "nb_max_episode_steps": (lambda: Counter(99), {"nb_max_episode_steps": 2}, "truncated"),
    # both at once: nothing follows a state that ended
    "the end at nb_max": (lambda: Counter(2), {"nb_max_episode_steps": 2}, "terminated"),
    "the end at TimeLimit": (lambda: TimeLimit(Counter(2), 2), {}, "terminated"),
    "old": (lambda: Old(2), {}, "terminated"),
    "old, cut": (lambda: Old(2, {"TimeLimit.truncated": True}), {}, "truncated"),
    "old, not cut": (lambda: Old(2, {"TimeLimit.truncated": False}), {}, "terminated"),
    "new, of no class": (lambda: WithInfo(2), {}, "truncated"),
}


@pytest.mark.parametrize("env, options, ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("run, count", [(fit, 5), (run_test, 2)])
def test_an_ending_and_a_cut_are_told_apart(env, options, ending, run, count):
    agent = Stub()
    run(agent, env(), count, **options)
    last = (1.0, True, ending == "truncated")
    assert agent.recorded[:6] == [(1.0, False, False), last, (0.0, False, False)] * 2
    assert [seen[0] for seen in agent.observations[:6]] == [0, 1, 2, 0, 1, 2]


def test_nb_max_episode_steps_counts_the_agents_steps_not_repetitions():
    notes = Notes()
    fit(Stub(), Counter(99), 4, action_repetition=3, nb_max_episode_steps=2, callbacks=[notes])
    assert notes.logs["episode end"] == [
        {"episode_reward": 6.0, "nb_episode_steps": 2, "nb_steps": 2},
        {"episode_reward": 6.0, "nb_episode_steps": 2, "nb_steps": 4},
    ]


def test_an_action_is_not_repeated_past_the_end():
    env = Counter(2)
    agent = Stub()
    fit(agent, env, 1, action_repetition=5)
    assert env.calls.count("env 1") == 2
    assert agent.recorded == [(2.0, True, False), (0.0, False, False)]


# Observations ----------------------------------------------------------------------------------


def test_an_observation_that_is_a_pair_is_not_taken_for_one_with_info():
    pair = lambda n: (np.array([n], np.float32), np.array([-n], np.float32))  # noqa: E731
    agent = Stub()
    fit(agent, Old(2, observe=pair), 2)
    assert [(a[0], b[0]) for a, b in agent.observations] == [(0, 0), (1, -1), (2, -2)]

    class New(Counter):
        def look(self):
            return np.float32([self.n]), np.float32([-self.n])

    agent = Stub()
    fit(agent, New(2), 2)
    assert [(a[0], b[0]) for a, b in agent.observations] == [(0, 0), (1, -1), (2, -2)]


@pytest.mark.parametrize("kind", ["array", "subclass", "dict", "tuple"])
def test_an_environment_may_write_into_what_it_handed_out(kind):
    class Kept(np.ndarray):
        """An array of a class of its own, as memory-mapped ones are."""

    buffer = np.zeros(1, np.float32)
    shown = {
        "array": buffer,
        "subclass": buffer.view(Kept),
        "dict": {"a": buffer},
        "tuple": (buffer, buffer),
    }[kind]

    def observe(n):
        buffer[0] = n
        return shown

    agent, notes = Stub(), Notes()
    agent.forward = lambda observation: agent.observations.append(observation) or 1
    fit(agent, Old(3, observe=observe), 3, callbacks=[notes])
    got = [keras.tree.flatten(seen)[0][0] for seen in agent.observations]
    assert got == [0, 1, 2, 3]
    logged = [keras.tree.flatten(logs["observation"])[0][0] for logs in notes.logs["step end"]]
    assert logged == [1, 2, 3]


# Random start steps ----------------------------------------------------------------------------


class Doubling(Processor):
    def process_action(self, action):
        return 10 * action


def test_start_steps_follow_their_policy_and_are_not_learned_from():
    calls, shown = [], []

    def policy(observation):
        shown.append(observation[0])
        return 7

    notes = Notes(calls)
    agent = Stub(calls, processor=Doubling())
    env = Counter(99, calls=calls)
    fit(
        agent, env, 40, nb_max_episode_steps=1, callbacks=[notes],
        nb_max_start_steps=3, start_step_policy=policy,
    )  # fmt: skip
    drawn = [int(seen[0]) for seen in agent.observations[::2]]  # what the first step saw
    assert len(drawn) == 40
    assert set(drawn) == {0, 1, 2, 3}  # the maximum included, as documented
    assert shown == [step for count in drawn for step in range(count)]
    assert calls.count("env 70") == sum(drawn)
    assert calls.count("action begin 70") == calls.count("action end 70") == sum(drawn)
    assert calls.count("env 10") == 40
    assert agent.recorded == [(1.0, True, True), (0.0, False, False)] * 40
    assert agent.step == 40
    assert notes.logs["episode end"][-1]["episode_reward"] == 1.0


def test_start_steps_draw_from_the_action_space():
    env = Counter(99)
    fit(Stub(), env, 30, nb_max_episode_steps=1, nb_max_start_steps=4)
    assert "env 0" in env.calls
    assert env.calls.count("env 1") > 30  # the agent's own 30, and more


def test_an_episode_that_ends_in_its_start_steps_begins_anew():
    agent, env = Stub(), Counter(1)
    with pytest.warns(UserWarning, match=r"random start steps; lower nb_max_start_steps=3"):
        fit(agent, env, 20, nb_max_start_steps=3)
    assert {seen[0] for seen in agent.observations[::2]} == {0}
    assert len(agent.recorded) == 40


# Processors ------------------------------------------------------------------------------------


class Spy(Processor):
    """A processor that notes its calls and changes everything it can."""

    def __init__(self):
        self.calls = []

    def process_step(self, observation, reward, done, info):
        self.calls.append(("step", float(observation[0]), reward, done))
        return super().process_step(observation, reward, done, info)

    def process_observation(self, observation):
        self.calls.append(("observation", float(observation[0])))
        return observation + 100

    def process_reward(self, reward):
        return 5 * reward

    def process_info(self, info):
        return {"seen": 1, **info}

    def process_action(self, action):
        self.calls.append(("action", action))
        return 10 * action


def test_processor_hooks_are_called_as_in_keras_rl():
    spy, notes = Spy(), Notes()
    agent, env = Stub(processor=spy), Counter(2)
    fit(agent, env, 2, callbacks=[notes])
    assert spy.calls == [
        ("observation", 0.0),
        ("action", 1), ("step", 1.0, 1.0, False), ("observation", 1.0),
        ("action", 1), ("step", 2.0, 1.0, True), ("observation", 2.0),
    ]  # fmt: skip
    assert [seen[0] for seen in agent.observations] == [100, 101, 102]
    assert agent.recorded == [(5.0, False, False), (5.0, True, False), (0.0, False, False)]
    assert env.calls == ["reset", "env 10", "env 10"]
    logs = notes.logs["step end"][0]
    assert (logs["action"], logs["reward"], logs["info"]) == (10, 5.0, {"seen": 1})
    assert logs["observation"][0] == 101


@pytest.mark.parametrize("cut", [False, True])
def test_a_processor_sees_one_done_and_may_decide_it(cut):
    class Ends(Processor):
        """Written for 4 values; ends the episode at observation 2, and nowhere else."""

        def process_step(self, observation, reward, done, info):
            seen.append(done)
            return observation, reward, observation[0] == 2, info

    seen, agent = [], Stub(processor=Ends())
    fit(agent, Counter(99), 2)
    assert seen == [False, False]
    assert agent.recorded[1] == (1.0, True, False)  # an ending: nobody spoke of a time limit
    seen, agent = [], Stub(processor=Ends())
    fit(agent, Counter(1, cut=cut), 2)  # never reset: the processor did not agree
    assert seen == [True, True]
    assert agent.recorded[:2] == [(1.0, False, False), (1.0, True, cut)]


def test_a_processor_that_leaves_done_alone_leaves_a_cut_a_cut():
    agent = Stub(processor=Spy())
    fit(agent, Counter(1, cut=True), 1)
    assert agent.recorded[0] == (5.0, True, True)


# Info ------------------------------------------------------------------------------------------


def test_info_is_summed_over_repetitions_whatever_it_holds():
    mask = np.array([1, 0])
    infos = [
        {"lives": 3, "mask": mask, "name": "a", "flag": True, "nested": {"x": 1}},
        {"lives": 2, "mask": mask, "score": 0.5, "none": None},
        {"lives": 1, "mask": np.zeros(3)},  # another shape: what is there stays
    ]

    class Telling(Counter):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, infos[(self.n - 1) % 3]

    notes = Notes()
    fit(Stub(), Telling(99), 2, action_repetition=3, callbacks=[notes])
    for logs in notes.logs["step end"]:
        info = logs["info"]
        assert set(info) == {"lives", "mask", "flag", "score"}
        assert (info["lives"], info["flag"], info["score"]) == (6, 1, 0.5)
        np.testing.assert_array_equal(info["mask"], [2, 0])
    np.testing.assert_array_equal(mask, [1, 0])  # the environment's own array


def test_an_old_environment_may_give_no_info():
    class Silent(Old):
        def step(self, action):
            return *super().step(action)[:3], None

    notes = Notes()
    fit(Stub(), Silent(2), 2, callbacks=[notes])
    assert [logs["info"] for logs in notes.logs["step end"]] == [{}, {}]


# Counters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, NEVER], ids=["episodes", "one episode"])
def test_counters_pass_32767_as_python_ints(length):
    # keras-rl2 counts in int16: 32767 + 1 is -32768 on NumPy 2, and `fit` never ends
    seen = []

    class Light(Stub):
        def forward(self, observation):
            return 1

        def backward(self, reward, terminal):
            return []

        def reset_states(self):
            pass

    class Last(Callback):
        def on_step_end(self, episode_step, logs=None):
            seen[:] = [episode_step, logs["episode"]]

    class Fast(Old):
        def step(self, action):
            self.n += 1
            return 0, 1.0, self.n >= self.length, {}

    agent, nb_steps = Light(), 2**15 + 5
    history = fit(agent, Fast(length), nb_steps, callbacks=[Last()])
    assert (agent.step, type(agent.step)) == (nb_steps, int)
    assert seen == ([0, nb_steps - 1] if length == 1 else [nb_steps - 1, 0])
    assert list(map(type, seen)) == [int, int]
    if length == 1:
        assert history.history["nb_steps"][-1] == nb_steps


# Stops -----------------------------------------------------------------------------------------


class Raising(Counter):
    """Raises at a given environment step of the run."""

    def __init__(self, error, at, **options):
        super().__init__(**options)
        self.error, self.left = error, at

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return super().step(action)


@pytest.mark.parametrize("run", [fit, run_test])
def test_ctrl_c_ends_a_run_with_its_history(run):
    agent, notes = Stub(), Notes()
    agent.step = 77
    history = run(agent, Raising(KeyboardInterrupt(), 5, length=3), 10, callbacks=[notes])
    assert history.history["episode_reward"] == [3.0]
    assert not history.completed
    assert history.reason == "keyboard interrupt"
    assert notes.logs["train end"] == [
        {"did_abort": True, "completed": False, "reason": "keyboard interrupt"}
    ]
    assert not agent.in_loop
    assert agent.step == (4 if run is fit else 77)
    assert run(agent, Counter(3), 3).completed  # the reason is gone


@pytest.mark.parametrize("run", [fit, run_test])
def test_an_error_reaches_on_train_end_and_the_caller(run):
    agent, notes, error = Stub(), Notes(), RuntimeError("the simulator fell over")
    agent.step = 77
    with pytest.raises(RuntimeError) as caught:
        run(agent, Raising(error, 5, length=3), 10, callbacks=[notes])
    assert caught.value is error
    (logs,) = notes.logs["train end"]
    assert (logs["did_abort"], logs["completed"]) == (False, False)
    assert not agent.in_loop
    assert agent.step == (4 if run is fit else 77)


@pytest.mark.parametrize("run", [fit, run_test])
def test_an_error_in_a_callback_reaches_the_others_on_train_end(run):
    notes = Notes()

    def fail(agent):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Stub(), Counter(3), 10, callbacks=[At(2, fail), notes])
    assert "train end" in notes.logs


@pytest.mark.parametrize("run", [fit, run_test])
def test_a_callback_can_stop_a_run_in_mid_episode(run):
    for stop, reason in (
        (lambda agent: agent.request_stop("seen enough"), "seen enough"),
        (lambda agent: setattr(agent, "stop_training", True), None),
    ):
        agent, notes = Stub(), Notes()
        history = run(agent, Counter(3), 100, callbacks=[At(5, stop), notes])
        assert len(notes.logs["step end"]) == 5
        assert len(notes.logs["episode end"]) == 1
        assert (history.completed, history.reason) == (False, reason)
        assert notes.logs["train end"][0]["did_abort"] is False
        assert run(agent, Counter(3), 3).completed


def test_test_restores_the_step_that_fit_reached():
    agent = Stub()
    fit(agent, Counter(3), 7)
    run_test(agent, Counter(3), 2)
    assert agent.step == 7


# Rendering -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [fit, run_test])
def test_visualize_without_a_render_mode_says_so_and_goes_on(run):
    with pytest.warns(UserWarning, match=r'render_mode="human"'):
        history = run(Stub(), gymnasium.make("CartPole-v1"), 1, visualize=True)
    assert history.completed


def test_visualize_draws_after_every_action():
    class Drawn(Counter):
        render_mode = "rgb_array"

        def render(self):
            drawn.append(self.n)

    drawn = []
    fit(Stub(), Drawn(3), 2, action_repetition=2, visualize=True)
    assert drawn == [1, 2, 3]


def test_frames_that_a_wrapper_stacks_are_told_of():
    agent = dqn(0, shape=(3, 4))
    stacked = FrameStackObservation(gymnasium.make("CartPole-v1"), 3)
    with pytest.warns(UserWarning, match=r"stacks 3 frames.*window_length=3"):
        fit(agent, stacked, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(dqn(0), gymnasium.make("CartPole-v1"), 3)


# Seeds -----------------------------------------------------------------------------------------


def dqn(seed, shape=(4,), warmup=5):
    agent = DQNAgent(
        small_model(shape=shape), nb_actions=2, memory=DeviceMemory(200), batch_size=4,
        nb_steps_warmup=warmup, target_model_update=0.1, seed=seed,
    )  # fmt: skip
    agent.compile(keras.optimizers.SGD(0.01))
    return agent


def play(seed, nb_steps=40):
    """What a run on CartPole saw and did, and what became of the weights."""
    agent, did = dqn(seed), Notes()
    env = gymnasium.make("CartPole-v1")
    history = fit(agent, env, nb_steps, callbacks=[did], nb_max_start_steps=3)
    steps = did.logs["step end"]
    seen = [logs["observation"].tolist() for logs in steps]
    actions = [int(logs["action"]) for logs in steps]
    tested = run_test(agent, env).history
    return seen, actions, history.history, tested, agent.model.get_weights()


def test_a_seed_makes_a_run_repeatable():
    first, second = play(7), play(7)
    assert first[:4] == second[:4]
    start = dqn(7).model.get_weights()
    for one, two, before in zip(first[4], second[4], start, strict=True):
        np.testing.assert_array_equal(one, two)
        assert (one != before).any()
    assert play(8, nb_steps=5)[0] != first[0][:5]


def test_the_seed_goes_to_the_first_reset_only_and_differs_from_run_to_run():
    agent, env = Stub(seed=7), Counter(1)
    fit(agent, env, 2)
    fit(agent, env, 2)
    first, *later = [call for call in env.calls if call.startswith("reset")]
    assert later[0] == later[2] == "reset"
    assert first.startswith("reset ")
    assert later[1].startswith("reset ")
    assert first != later[1]
    env = Counter(1)
    fit(Stub(), env, 2)
    assert env.calls.count("reset") == 2  # no seed given, none passed on


def test_an_old_environment_is_seeded_through_its_own_method():
    class Seeded(Old):
        def seed(self, seed):
            seeds.append(seed)

    seeds = []
    fit(Stub(seed=7), Seeded(1), 3)
    fit(Stub(), Seeded(1), 3)
    assert len(seeds) == 1


def test_numpys_global_seed_still_makes_a_script_repeatable():
    def actions():
        np.random.seed(3)  # noqa: NPY002  as at the top of keras-rl's scripts
        did = Notes()
        fit(dqn(None, shape=(1,), warmup=NEVER), Counter(5), 60, callbacks=[did])
        return [int(logs["action"]) for logs in did.logs["step end"]]

    first = actions()
    assert set(first) == {0, 1}  # exploration, which the seed decides
    assert first == actions()
    seeds = [Stub().seed, Stub().seed]
    assert seeds[0] != seeds[1]


# An episode that is left open ------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored():
    """A DQN that never learns; `news`: (observation, terminal) of every row since last asked."""
    agent, seen = dqn(1, shape=(1,), warmup=NEVER), SimpleNamespace(count=0)

    def news():
        memory, start = agent.memory, seen.count
        seen.count = memory.nb_entries
        values = [int(shown[0]) for shown in memory.observations]
        return list(zip(values, memory.terminals.tolist()))[start:]

    return agent, news


def test_the_next_fit_closes_an_open_episode_as_cut(stored):
    agent, news = stored
    memory = agent.memory
    fit(agent, Counter(9), 2)
    assert news()[-2:] == [(0, False), (1, False)]
    newest = memory.nb_entries - 1
    fit(agent, Counter(2), 3)
    # first what `fit` saw last, 2; then an episode 0, 1, 2 and the next one's 0
    assert news() == [(2, False), (0, False), (1, True), (2, False), (0, False)]
    assert memory.terminals[newest]
    batch = memory.read_batch(2, [newest, newest + 3])
    np.testing.assert_array_equal(batch["observation"]["observation"].ravel(), [1, 1])
    np.testing.assert_array_equal(batch["next_observation"]["observation"].ravel(), [2, 2])
    # the value behind a cut counts, the one behind an ending does not
    np.testing.assert_allclose(batch["discount"], [0.99, 0])
    np.testing.assert_array_equal(batch["terminated"], [False, True])


def test_test_closes_an_open_episode_too_and_stores_nothing_else(stored):
    agent, news = stored
    fit(agent, Counter(9), 3)
    news()
    run_test(agent, Counter(2), 2)
    assert news() == []  # another environment: the open episode waits
    agent.runs.left = agent.runs.left._replace(env=(env := Counter(2)))
    run_test(agent, env, 2)
    assert news() == [(3, False)]
    run_test(agent, env)
    fit(agent, Counter(9), 1)
    assert news() == [(0, False)]  # closed once


@pytest.mark.parametrize("repetition", [1, 2])
def test_ctrl_c_in_a_step_leaves_the_episode_open_at_its_last_state(stored, repetition):
    # interrupted in step 2, at its last repetition: the state it began in follows step 1
    agent, news = stored
    env = Raising(KeyboardInterrupt(), 3 * repetition, length=9)
    fit(agent, env, 9, action_repetition=repetition)
    fit(agent, Counter(9), 1)
    last = 2 * repetition
    assert news()[-4:] == [(0, False), (repetition, True), (last, False), (0, False)]


def test_a_reused_buffer_does_not_reach_the_pool(stored):
    buffer = np.zeros(1, np.float32)

    def observe(n):
        buffer[0] = n
        return buffer

    agent, news = stored
    fit(agent, Old(3, observe=observe), 6)
    assert [value for value, _ in news()[-8:]] == [0, 1, 2, 3] * 2


def test_an_episode_that_ended_is_not_closed_again(stored):
    agent, news = stored
    fit(agent, Counter(2), 2)
    news()
    fit(agent, Counter(9), 1)
    assert news() == [(0, False)]


def test_a_window_does_not_reach_into_the_run_before():
    for run, count in ((fit, 2), (run_test, 1)):
        agent = Stub(memory=DeviceMemory(50, window_length=3))
        for value in (7, 8, 9):
            agent.memory.remember(np.float32([value]), False)
        run(agent, Counter(2), count)
        state = agent.memory.get_recent_state(np.float32([5]))
        assert [float(shown[0]) for shown in state] == [0, 0, 5]


# Bad calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [fit, run_test])
def test_a_run_before_compile_is_refused(run):
    agent = Stub()
    agent.compiled = False
    with pytest.raises(NotCompiled, match=r"agent\.compile\(keras\.optimizers"):
        run(agent, Counter(), 1)


@pytest.mark.parametrize(
    "name, value",
    [
        ("action_repetition", 0),
        ("nb_max_start_steps", -1),
        ("nb_max_episode_steps", -1),
    ],
)
@pytest.mark.parametrize("run", [fit, run_test])
def test_counts_that_make_no_sense_are_refused(run, name, value):
    with pytest.raises(ArgumentError, match=f"{name}={value}; pass"):
        run(Stub(), Counter(), 1, **{name: value})
    with pytest.raises(ArgumentError, match="=-1; pass"):
        run(Stub(), Counter(), -1)


def test_a_step_of_three_values_is_refused():
    class Three(Old):
        def step(self, action):
            return super().step(action)[:3]

    with pytest.raises(ObservationError, match=r"step 0: env\.step returned 3 values"):
        fit(Stub(), Three(), 2)


# Arguments and ends ------------------------------------------------------------------------------


def test_whole_floats_are_counts():
    agent = Stub()
    fit(agent, Counter(9), 4.0, action_repetition=2.0, nb_max_episode_steps=3.0)
    assert agent.step == 4
    assert agent.observations[:3] == [0, 2, 4]


def test_a_wrong_log_interval_is_named():
    with pytest.raises(ArgumentError, match="log_interval=0"):
        Stub().fit(Counter(3), 2, log_interval=0)


def test_callbacks_hear_of_the_end_also_where_finishing_fails():
    class Broken(Stub):
        def end_run(self, open_observation):
            raise RuntimeError("the device is gone")

    notes = Notes()
    with pytest.raises(RuntimeError, match="the device is gone"):
        fit(Broken(), Counter(3), 2, callbacks=[notes])
    assert notes.calls[-1] == "train end"


def test_observations_of_random_start_steps_are_checked():
    class Bad(gymnasium.Env):
        observation_space, action_space = Box(0, 1, (4,), np.float32), Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.n = 0
            return np.zeros(4, np.float32), {}

        def step(self, action):
            self.n += 1
            shown = np.full(4, np.nan if self.n == 2 else 0, np.float32)
            return shown, 0.0, False, False, {}

    agent = dqn(3)
    fit(agent, gymnasium.make("CartPole-v1"), 2)
    with pytest.raises(ObservationError, match="NaN"):
        fit(agent, Bad(), 50, nb_max_start_steps=40)
    assert np.isfinite(agent.memory.observations).all()


def test_late_metrics_of_an_update_that_failed_are_nan():
    metrics = Metrics(2, flush=lambda: None)
    assert np.isnan(list(metrics)).all()
    assert metrics != None  # noqa: E711
    assert Metrics(2, None, [1.0, 2.0]) == (1.0, 2.0)


# Ctrl-C ------------------------------------------------------------------------------------------


def press_ctrl_c_after(*delays_s):
    for delay_s in delays_s:
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_at_any_moment_loses_nothing(capsys):
    agent, env = dqn(0), gymnasium.make("CartPole-v1")
    fit(agent, env, 20)  # compiled, so that the signals meet steps
    for delay_s in np.linspace(0.1, 0.25, 12):
        press_ctrl_c_after(delay_s)
        history = fit(agent, env, 10**7)
        assert (history.completed, history.reason) == (False, "keyboard interrupt")
        assert all(np.isfinite(weights).all() for weights in agent.model.get_weights())
        assert fit(agent, env, 7).completed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "Ctrl-C again stops at once" in capsys.readouterr().err


def test_a_second_ctrl_c_ends_a_step_that_takes_for_ever():
    class Slow(Counter):
        def step(self, action):
            time.sleep(60)

    gc.disable()  # an exception inside a gc callback, Hypothesis has one, is lost
    try:
        press_ctrl_c_after(0.2, 0.4)
        began_s = time.monotonic()
        history = fit(Stub(), Slow(), 5)
    finally:
        gc.enable()
    assert not history.completed
    assert time.monotonic() - began_s < 30


def test_a_handler_of_ones_own_is_left_alone():
    caught = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        press_ctrl_c_after(0.0)
        time.sleep(0.2)
        assert fit(Stub(), Counter(), 3).completed
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [signal.SIGINT]


# What is no environment --------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", Counter])
def test_what_is_no_environment_is_refused(env):
    with pytest.raises(ArgumentError, match="no environment; pass an object"):
        fit(Stub(), env, 2)


def test_a_dqn_says_which_actions_it_takes():
    with pytest.raises(ArgumentError, match="Use DDPGAgent"):
        fit(dqn(0, shape=(3,)), gymnasium.make("Pendulum-v1"), 2)
    with pytest.raises(ArgumentError, match=r"the environment has 4; pass nb_actions=4"):
        fit(dqn(0), SimpleEnv(Discrete(4)), 2)
    with pytest.raises(ArgumentError, match="'eps' is no keras-rl policy"):
        dqn(0).policy = "eps"
    with pytest.raises(ArgumentError, match="pass a list of them"):
        fit(dqn(0), Counter(), 2, callbacks=Notes())


class SimpleEnv(Counter):
    def __init__(self, action_space):
        super().__init__()
        self.action_space = action_space
