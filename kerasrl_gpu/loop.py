"""The one place that steps an environment: keras-rl's `fit` and `test`."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np

from kerasrl_gpu import callbacks as cb
from kerasrl_gpu.environment import Environment, add_numbers, warn_of_stacked_frames
from kerasrl_gpu.errors import ArgumentError, ObservationError, check_count
from kerasrl_gpu.interrupts import Interrupts
from kerasrl_gpu.observations import as_reward


def fit(
    agent,
    env,
    nb_steps,
    action_repetition=1,
    callbacks=None,
    verbose=1,
    visualize=False,
    nb_max_start_steps=0,
    start_step_policy=None,
    log_interval=10000,
    nb_max_episode_steps=None,
):
    """Train an agent for `nb_steps` environment steps.

    keras-rl's contract: on_train_begin, then for each episode on_episode_begin, its steps
    (on_step_begin, then on_action_begin and on_action_end for each repetition, on_step_end), one
    more `forward` and `backward` with the last observation, on_episode_end; on_train_end whatever
    happened, also after an exception, which is raised again. Ctrl-C ends a run after the step that
    it comes in, without one.

    Args:
        agent: compiled.
        env: a Gymnasium environment, or one with the old 4-value `step`.
        nb_steps: environment steps; the agent's step counter starts at 0, as in keras-rl.
        action_repetition: environment steps with one action, seen as one step.
        callbacks: keras-rl's, ours and Keras' own.
        verbose: 0 nothing, 1 a progress bar, 2 a line an episode.
        visualize: render at every action.
        nb_max_start_steps: up to so many steps at an episode's start, 0 included, are not learned
            from.
        start_step_policy: observation -> action for them; None draws from the action space.
        log_interval: steps between two summaries under verbose=1.
        nb_max_episode_steps: cut episodes there; a cut is a truncation, not an ending.

    Returns:
        History; its `completed` and `reason` say how the run ended.
    """
    options = _checked(
        agent,
        nb_max_episode_steps,
        start_step_policy,
        nb_steps=nb_steps,
        action_repetition=action_repetition,
        nb_max_start_steps=nb_max_start_steps,
        log_interval=log_interval,
    )
    nb_steps, log_interval = options.pop("nb_steps"), options.pop("log_interval")
    loggers = {1: [cb.TrainIntervalLogger(interval=log_interval)], 2: [cb.TrainEpisodeLogger()]}
    extra = loggers.get(min(verbose, 2), []) + ([cb.Visualizer()] if visualize else [])
    run = _Run(agent, env, callbacks, extra, {"nb_steps": nb_steps}, training=True, **options)
    agent.step = 0  # before the callbacks begin: they count from it
    with run.running():
        while agent.step < nb_steps and not agent.stop_training:
            run.step()
    return run.history


def test(
    agent,
    env,
    nb_episodes=1,
    action_repetition=1,
    callbacks=None,
    visualize=True,
    nb_max_episode_steps=None,
    nb_max_start_steps=0,
    start_step_policy=None,
    verbose=1,
):
    """Play without learning; the agent's step counter is as before afterwards.

    Args:
        nb_episodes: how many.
        verbose: 0 nothing, else a line an episode.
        the others: see `fit`.

    Returns:
        History with one entry an episode.
    """
    options = _checked(
        agent,
        nb_max_episode_steps,
        start_step_policy,
        nb_episodes=nb_episodes,
        action_repetition=action_repetition,
        nb_max_start_steps=nb_max_start_steps,
    )
    nb_episodes = options.pop("nb_episodes")
    extra = ([cb.TestLogger()] if verbose else []) + ([cb.Visualizer()] if visualize else [])
    run = _Run(
        agent, env, callbacks, extra, {"nb_episodes": nb_episodes}, training=False, **options
    )
    before, agent.step = agent.step, 0
    try:
        with run.running():
            while run.episode < nb_episodes and not agent.stop_training:
                run.step()
    finally:
        agent.step = before
    return run.history


def _checked(agent, nb_max_episode_steps, start_step_policy, **counts) -> dict:
    """The options as whole numbers; raises before anything has begun."""
    agent.check_compiled()
    least = {"action_repetition": 1, "log_interval": 1}
    options = {name: check_count(name, n, least.get(name, 0)) for name, n in counts.items()}
    if nb_max_episode_steps is not None:
        nb_max_episode_steps = check_count("nb_max_episode_steps", nb_max_episode_steps)
    return options | {
        "nb_max_episode_steps": nb_max_episode_steps,
        "start_step_policy": start_step_policy,
    }


class _Run:
    """One call of `fit` or `test`: the environment, the callbacks and the open episode."""

    def __init__(
        self,
        agent,
        env,
        callbacks,
        extra,
        params,
        *,
        training,
        action_repetition,
        nb_max_start_steps,
        start_step_policy,
        nb_max_episode_steps,
    ):
        self.agent, self.processor, self.training = agent, agent.processor, training
        self.environment, self.interrupts = Environment(env), Interrupts()
        if agent.on_pool:
            warn_of_stacked_frames(env, agent.memory.window_length)
        if not isinstance(callbacks or [], (list, tuple)):
            raise ArgumentError(f"callbacks={callbacks!r}; pass a list of them, callbacks=[...].")
        self.history = cb.History()
        self.callbacks = cb.CallbackList([*(callbacks or []), *extra, self.history])
        self.callbacks.set_model(agent)
        self.callbacks.set_env(env)
        self.callbacks.set_params(params)
        self.repetition, self.max_steps = action_repetition, nb_max_episode_steps
        self.max_start_steps, self.start_policy = nb_max_start_steps, start_step_policy
        self.episode, self.observation = 0, None
        self.episode_step, self.episode_reward = 0, 0.0
        self._random = np.random.default_rng(agent.seed)
        self._seed = agent.begin_run(env, training)

    @contextlib.contextmanager
    def running(self):
        """on_train_begin and on_train_end around the run, whatever ends it."""
        agent, aborted, completed = self.agent, False, False
        try:
            agent._on_train_begin() if self.training else agent._on_test_begin()
            self.callbacks.on_train_begin({})
            with self.interrupts:
                yield
            completed = not agent.stop_training
        except KeyboardInterrupt:
            aborted, agent.stop_reason = True, "keyboard interrupt"
        except ObservationError as error:
            raise ObservationError(self._where(error)) from error
        finally:
            try:
                agent.end_run(self.observation)
            finally:
                reason = agent.stop_reason
                self.callbacks.on_train_end(
                    {"did_abort": aborted, "completed": completed, "reason": reason}
                )
                agent._on_train_end() if self.training else agent._on_test_end()

    def _where(self, error):
        text = str(error)
        return text if text.startswith("step ") else f"step {self.agent.step}: {text}"

    def step(self):
        """One environment step, with the episode's beginning before and its end behind it."""
        self.interrupts.check()
        if self.observation is None:
            self._begin_episode()
        agent, callbacks = self.agent, self.callbacks
        callbacks.on_step_begin(self.episode_step)
        action = agent.forward(self.observation)
        if self.processor is not None:
            action = self.processor.process_action(action)
        seen, reward, ended, truncated, info = self._act(action)
        if not ended and self.max_steps and self.episode_step >= self.max_steps - 1:
            ended = truncated = True
        agent.truncated, agent.upcoming = truncated, None if ended else seen
        metrics = agent.backward(reward, terminal=ended)
        self.observation = seen  # not before: a step that is broken off did not happen
        self.episode_reward += reward
        logs = {
            "action": action,
            "observation": self.observation,
            "reward": reward,
            "metrics": metrics,
            "episode": self.episode,
            "info": info,
        }
        if not self.training:
            del logs["metrics"]
        callbacks.on_step_end(self.episode_step, logs)
        self.episode_step += 1
        agent.step += 1
        if ended:
            self._end_episode()

    def _act(self, action):
        """Repeat an action; (observation, reward summed, ended, truncated, info summed)."""
        total, infos = 0.0, None
        for _ in range(self.repetition):
            self.callbacks.on_action_begin(action)
            observation, reward, terminated, truncated, info = self._env_step(action)
            total += as_reward(reward)
            self.agent.check_observation(observation)
            self.callbacks.on_action_end(action)
            if info:
                infos = add_numbers(infos, info)
            if terminated or truncated:
                # a state that is both is an ending: nothing follows it
                return observation, total, True, bool(truncated and not terminated), infos or {}
        return observation, total, False, False, infos or {}

    def _env_step(self, action):
        observation, reward, terminated, truncated, info = self.environment.step(action)
        if self.processor is None:
            return observation, reward, terminated, truncated, info
        done = bool(terminated or truncated)
        observation, reward, ended, info = self.processor.process_step(
            observation, reward, done, info
        )
        if bool(ended) != done:  # the processor decides; what it ends by itself is an ending
            terminated, truncated = bool(ended), False
        return observation, reward, terminated, truncated, info

    def _begin_episode(self):
        self.callbacks.on_episode_begin(self.episode)
        self.agent.reset_states()
        self.episode_step, self.episode_reward = 0, 0.0
        self._reset()
        if not self.max_start_steps:
            return
        for _ in range(int(self._random.integers(self.max_start_steps + 1))):
            if self.start_policy is None:
                action = self.environment.env.action_space.sample()
            else:
                action = self.start_policy(self.observation)
            if self.processor is not None:
                action = self.processor.process_action(action)
            self.callbacks.on_action_begin(action)
            self.observation, _, terminated, truncated, _ = self._env_step(action)
            self.agent.check_observation(self.observation)
            self.callbacks.on_action_end(action)
            if terminated or truncated:
                warnings.warn(
                    "the episode ended during its random start steps; lower "
                    f"nb_max_start_steps={self.max_start_steps}.",
                    stacklevel=2,
                )
                return self._reset()

    def _reset(self):
        observation, self._seed = self.environment.reset(self._seed), None
        if self.processor is not None:
            observation = self.processor.process_observation(observation)
        if observation is None:
            raise ObservationError("env.reset() returned None; it has to return an observation.")
        self.agent.check_observation(observation)
        self.observation = observation

    def _end_episode(self):
        # the last observation has not been seen yet: keras-rl's extra pair of calls stores it
        self.agent.forward(self.observation)
        self.agent.backward(0.0, terminal=False)
        logs = {"episode_reward": self.episode_reward}
        if self.training:
            logs |= {"nb_episode_steps": self.episode_step, "nb_steps": self.agent.step}
        else:
            logs["nb_steps"] = self.episode_step
        self.callbacks.on_episode_end(self.episode, logs)
        self.episode += 1
        self.observation = None
