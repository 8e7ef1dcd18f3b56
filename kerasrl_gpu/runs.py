"""An agent's calls of `fit` and `test`: the one that runs, where the last was left, their seeds."""

from __future__ import annotations

import secrets
import warnings
from typing import NamedTuple

from kerasrl_gpu import attributes, preparing
from kerasrl_gpu.errors import ArgumentError, in_words
from kerasrl_gpu.resume import saving
from kerasrl_gpu.resume.report import Report


class Left(NamedTuple):
    """Where a training run was left between two steps, for `resume` to go on there.

    Attributes:
        state: `Run.get_state`.
        env: the environment that stands there still; None where only the snapshot does.
        snapshot: `snapshots.take` of it, from a checkpoint.
        reason: why its open episode cannot go on; None where it can.
    """

    state: dict
    env: object = None
    snapshot: dict | None = None
    reason: str | None = None


class Runs:
    """Begins and ends runs for an agent; between two it knows where to go on.

    Args:
        agent: whose runs.
        seeded: whether environments get seeds that follow from the agent's.

    Attributes:
        current: the `Run` that trains now, else None.
        left: where the last training run was left, or what a checkpoint said of one.
        resumed: what the last resume brought back.
        name: tells this run's checkpoints from those of others; a fresh run gets a new one.
        nb_runs: how many began.
        saved: the newest checkpoint that the running one has written; None before the first.
    """

    def __init__(self, agent, seeded: bool):
        self._agent, self.seeded = agent, seeded
        self.current = self.left = self.saved = None
        self.resumed, self.nb_runs, self.name = Report(), 0, _new_name()
        self._requests, self._calls = {}, []  # path -> keep; what follows the saves
        self._aside, self._step_before = None, 0

    def begin(self, env, training: bool, resumed: bool) -> int | None:
        """See `Agent.begin_run`."""
        agent = self._agent
        if agent.in_loop:
            raise ArgumentError(
                "fit or test was called inside a running one, which would end its training; call "
                "it afterwards, or evaluate with a second agent that loads the weights."
            )
        agent.flush()
        agent.notice_weights()
        preparing.look_at_processor(agent)
        if not training and self.left is not None and self.left.env is not env:
            # the open training episode waits while a test plays on its own
            self._aside = _acting_state(agent)
            agent.recorder.forget()
        elif not resumed:
            self.close_episode()
        agent.training, agent.in_loop = training, True
        if hasattr(agent.processor, "training"):
            agent.processor.training = training
        agent.stop_training, agent.stop_reason = False, None
        self.saved = None
        if resumed:
            return None
        self._step_before, agent.step = agent.step, 0
        if training:
            self.name = _new_name()
        self.nb_runs += 1
        return self.environment_seed(env)

    def end(self, left) -> None:
        """See `Agent.end_run`."""
        agent = self._agent
        agent.in_loop, self.current, self._requests, self._calls = False, None, {}, []
        if agent.training:
            self.leave(left)
            agent.is_tuned = agent.batch_is_free = False
        else:
            agent.step = self._step_before
        agent.sync()
        if self._aside is not None:
            aside, self._aside = self._aside, None
            _take_acting_state(agent, aside)

    def left_by(self, run):
        """Where a training run was left; None, and a warning, where that cannot be told."""
        try:
            return run.left()
        except Exception as error:  # a callback's get_state, or a full disk under its log
            warnings.warn(
                "nothing can go on from where this run ended: "
                f"{in_words(error).rstrip('.')}. Resume from a checkpoint instead.",
                stacklevel=2,
            )
            return None

    def leave(self, left) -> None:
        """Note where a training run was left; None where nothing goes on from."""
        self.left = left
        shown_last = None if left is None else left.state["observation"]
        self._agent.recorder.leave_open(shown_last)

    def where(self):
        """Where the training run stands, or was left; None before the first one."""
        return self.left if self.current is None else self.current.left()

    @property
    def can_resume(self) -> bool:
        """Whether a checkpoint written now, after `fit`, goes on where it ended."""
        return self.left is not None and self.left.reason is None

    @property
    def is_stopping(self) -> bool:
        """Whether the running `fit` was asked to end after this step."""
        running = self.current is not None
        return running and (self._agent.stop_training or self.current.interrupts.waits)

    def close_episode(self) -> None:
        """End an episode that was left open, as truncated, and start a new acting window."""
        self._agent.recorder.begin_run(self._agent.recent_observation)
        if self.left is not None:
            self.left = self.left._replace(reason="its episode was closed since")

    def environment_seed(self, env, *streams) -> int | None:
        """Seed an environment's action space, and return the seed of its next reset.

        None where the agent has no seed of its own.
        """
        if not self.seeded:
            return None
        seed = self._agent.derived_seed(self.nb_runs, *streams)
        if hasattr(getattr(env, "action_space", None), "seed"):
            env.action_space.seed(seed)
        return seed

    def request_save(self, path, keep: int) -> None:
        """Have a checkpoint written when the step has ended."""
        self._requests[path] = keep

    def request_call(self, call) -> None:
        """Have something done when the step has ended and is saved."""
        self._calls.append(call)

    def save_requested(self) -> None:
        """Write the checkpoints that were asked for, then make the calls.

        Where a checkpoint cannot be written, a warning says so.
        """
        if self._requests:
            requests, self._requests = self._requests, {}
            for path, keep in requests.items():
                saving.write_or_warn(self._agent, path, keep)
        while self._calls:
            self._calls.pop(0)()


def _acting_state(agent) -> dict:
    """What playing another episode would disturb, of the one that is open."""
    agent.flush()
    window = [list(agent.memory.recent_observations), list(agent.memory.recent_terminals)]
    noise = {
        name: attributes.capture(part, skip=("agent", "env"))[0]
        for name, part in agent.parts().items()
        if hasattr(part, "reset_states")
    }
    return {"window": window, "noise": noise, "agent": agent.get_acting_state()}


def _take_acting_state(agent, state: dict) -> None:
    """Go on with the episode that `_acting_state` was asked about."""
    held = (agent.memory.recent_observations, agent.memory.recent_terminals)
    for deque, values in zip(held, state["window"], strict=True):
        deque.clear()
        deque.extend(values)
    for name, noise in state["noise"].items():
        attributes.restore(agent.parts()[name], noise)
    agent.set_acting_state(state["agent"])


def _new_name() -> str:
    """From the system's entropy: NumPy's and Python's generators belong to the user."""
    return secrets.token_hex(8)
