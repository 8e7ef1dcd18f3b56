"""One call of `fit` or `test`: the only place that steps an environment."""

from __future__ import annotations

import contextlib
import warnings
from typing import NamedTuple

import numpy as np

from kerasrl_gpu import callbacks as cb
from kerasrl_gpu import snapshots
from kerasrl_gpu.environment import Environment, add_numbers, warn_of_stacked_frames
from kerasrl_gpu.errors import CheckpointError, ObservationError, SnapshotError, StateLost
from kerasrl_gpu.interrupts import Interrupts
from kerasrl_gpu.observations import as_reward
from kerasrl_gpu.runs import Left


class Options(NamedTuple):
    """What decides how a run plays; see `fit`. Another run may go on only with the same."""

    action_repetition: int
    nb_max_start_steps: int
    nb_max_episode_steps: int | None


class Run:
    """One call of `fit` or `test`: the environment, the callbacks and the open episode.

    Args:
        callbacks: in the order in which they are called; the run's History comes after them.
        params: {"nb_steps": n} or {"nb_episodes": n}, which callbacks get.
        start_policy: observation -> action of start steps; None draws from the action space.
        training: whether it is a `fit`.
        left: where an earlier run was left, to go on from there; None starts anew.
        allow: names of options that may be others than that run's, and "environment".

    Raises:
        CheckpointError: this run cannot go on where that one was left.
    """

    def __init__(
        self,
        agent,
        env,
        callbacks,
        params,
        options,
        start_policy,
        *,
        training=True,
        left=None,
        allow=(),
    ):
        self.agent, self.processor, self.training = agent, agent.processor, training
        self.environment, self.interrupts = Environment(env), Interrupts()
        if agent.on_pool:
            warn_of_stacked_frames(env, agent.memory.window_length)
        self.options, self.start_policy = options, start_policy
        self.history = cb.History()
        self.callbacks = cb.CallbackList([*callbacks, self.history])
        self._left, self._inside, ahead = left, False, None
        if left is not None:
            self._check_options(left, allow)
            ahead = self._take_up_environment(left, allow)
            for name in self.callbacks.cut_back(left.state["callbacks"]):
                agent.runs.resumed.ignored.append(f"callback {name}: this run has none")
        self.callbacks.set_model(agent)
        self.callbacks.set_env(env)
        self.callbacks.set_params(params)
        self.episode, self.observation = 0, None
        self.episode_step, self.episode_reward = 0, 0.0
        self._random = np.random.default_rng(agent.seed)
        self._seed = agent.begin_run(env, training, resumed=left is not None)
        if left is not None:
            self._take_up(left.state, ahead)
        if training:
            agent.runs.current = self
            snapshots.prepare(env)

    @contextlib.contextmanager
    def running(self):
        """on_train_begin and on_train_end around the run, whatever ends it."""
        agent, aborted, completed = self.agent, False, False
        try:
            agent._on_train_begin() if self.training else agent._on_test_begin()
            self.callbacks.on_train_begin({})
            if self._left is not None:
                self.callbacks.set_state(self._left.state["callbacks"])
            with self.interrupts:
                yield
            completed = not agent.stop_training
        except KeyboardInterrupt:
            aborted, agent.stop_reason = True, "keyboard interrupt"
        except ObservationError as error:
            raise ObservationError(self._where(error)) from error
        except StateLost:
            agent.begin_again()  # what follows looks at weights
            raise
        finally:
            try:
                agent.end_run(agent.runs.left_by(self) if self.training else None)
            finally:
                reason = agent.stop_reason
                self.callbacks.on_train_end(
                    {"did_abort": aborted, "completed": completed, "reason": reason}
                )
                self.history.reason = agent.stop_reason  # signals come while callbacks end, too
                agent._on_train_end() if self.training else agent._on_test_end()

    # Leaving a run and taking it up ---------------------------------------------------------------

    def get_state(self) -> dict:
        """Where the run stands between two steps, as plain values and arrays."""
        return {
            "episode": self.episode,
            "episode_step": self.episode_step,
            "episode_reward": self.episode_reward,
            "observation": self.observation,
            "seed": self._seed,
            "random": self._random.bit_generator.state,
            "options": self.options._asdict(),
            "callbacks": self.callbacks.get_state(),
        }

    def left(self) -> Left:
        """Where the run stands now."""
        reason = "a step was broken off, and the environment is ahead" if self._inside else None
        return Left(self.get_state(), self.environment.env, reason=reason)

    def _check_options(self, left, allow):
        for name, value in left.state["options"].items():
            here = getattr(self.options, name)
            if here == value:
                continue
            if name not in allow:
                raise CheckpointError(
                    f"the run to go on with had {name}={value}, this one has {here}. "
                    f"Pass {name}={value}, or allow=({name!r},) to change it."
                )
            self.agent.runs.resumed.ignored.append(f"{name}={value}: {here} holds, as allowed")

    def _take_up(self, state, reason):
        """Go on from `get_state`; with a reason why the environment does not, in a new episode."""
        agent = self.agent
        for name in ("episode", "episode_step", "episode_reward", "observation"):
            setattr(self, name, state[name])
        self._seed, self._random.bit_generator.state = state["seed"], state["random"]
        agent.runs.resumed.environment(reason, opened=self.observation is not None)
        if reason is None:
            return
        if self.observation is not None:  # nothing can follow it: its episode ran out of time
            agent.runs.close_episode()
            self.episode, self.observation = self.episode + 1, None
        self._seed = agent.runs.environment_seed(self.environment.env, agent.step)

    def _take_up_environment(self, left, allow) -> str | None:
        """Put the environment where it was; the reason why it cannot be, None where it is."""
        if left.reason is not None or left.env is self.environment.env:
            return left.reason
        if left.snapshot is None:
            return "it is another environment than the run was left in"
        try:
            snapshots.restore(self.environment.env, left.snapshot)
        except SnapshotError as error:
            if "environment" not in allow:
                raise CheckpointError(
                    f"{error} Or pass allow=('environment',): the open episode is closed as "
                    "truncated, and the run goes on in this one."
                ) from error
            return str(error)
        return None

    # Steps --------------------------------------------------------------------------------------

    def _where(self, error):
        text = str(error)
        return text if text.startswith("step ") else f"step {self.agent.step}: {text}"

    def step(self):
        """One environment step, with the episode's beginning before and its end behind it."""
        self.interrupts.check()
        self._inside = True
        if self.observation is None:
            self._begin_episode()
        agent, callbacks = self.agent, self.callbacks
        callbacks.on_step_begin(self.episode_step)
        action = agent.forward(self.observation)
        if self.processor is not None:
            action = self.processor.process_action(action)
        seen, reward, ended, truncated, info = self._act(action)
        most = self.options.nb_max_episode_steps
        if not ended and most and self.episode_step >= most - 1:
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
        self._inside = False
        agent.runs.save_requested()

    def _act(self, action):
        """Repeat an action; (observation, reward summed, ended, truncated, info summed)."""
        total, infos = 0.0, None
        for _ in range(self.options.action_repetition):
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
        most = self.options.nb_max_start_steps
        if not most:
            return
        for _ in range(int(self._random.integers(most + 1))):
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
                    f"nb_max_start_steps={most}.",
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
