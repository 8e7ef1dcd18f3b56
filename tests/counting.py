"""A run whose numbers are known beforehand, and an agent that compiles once for a whole file."""

import gymnasium
import keras
import numpy as np

from kerasrl_gpu import DeviceMemory, DQNAgent, checkpoint
from kerasrl_gpu.keras_rl import Memory
from kerasrl_gpu.policy import EpsGreedyQPolicy

LENGTH = 5  # steps an episode


class Counting(gymnasium.Env):
    """Step n since the first one gives the reward n, so episode e sums up to 25 e + 15.

    Args:
        on_step: called with n inside that step; may wait, send a signal or raise.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, on_step=None):
        self.on_step, self.steps = on_step, 0

    def reset(self, *, seed=None, options=None):
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        if self.on_step is not None:
            self.on_step(self.steps)
        reward, ended = float(self.steps), self.steps % LENGTH == 0
        return self._observation(), reward, ended, False, {}

    def get_state(self):
        return {"steps": self.steps}

    def set_state(self, state):
        self.steps = state["steps"]

    def _observation(self):
        return np.array([self.steps % LENGTH / LENGTH, self.steps % 7 / 7], np.float32)


def new_agent(model=None, memory=None, batch_size=4, **arguments) -> DQNAgent:
    """Learns from step 4 on; its seed decides everything but the first weights."""
    model = model or keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(), keras.layers.Dense(2),
    ])  # fmt: skip
    agent = DQNAgent(
        model, nb_actions=2, memory=memory or DeviceMemory(limit=64), nb_steps_warmup=4,
        batch_size=batch_size, policy=EpsGreedyQPolicy(0.3), target_model_update=0.1, seed=3,
        **arguments,
    )  # fmt: skip
    agent.compile(keras.optimizers.Adam(0.01))
    return agent


def steps_in(run) -> list[int]:
    """The steps of a run directory's checkpoints, oldest first."""
    return [int(path.name.partition("-step-")[2]) for path in reversed(checkpoint.find(run))]


def newest_state(run) -> dict:
    """All that the newest checkpoint holds, the pool's rows too, but for the callbacks."""
    saved = checkpoint.open_newest(run)
    state, rows = saved.state, {name: saved.rows(name) for name in saved.range_names}
    del state["run"]["callbacks"]
    return {**state, "rows": rows}


class Own(Memory):
    """A memory of a user's own; nothing is ever drawn from it here."""

    nb_entries = 0

    def sample(self, batch_size, batch_idxs=None):
        raise NotImplementedError

    def append(self, observation, action, reward, terminal, training=True):
        super().append(observation, action, reward, terminal, training)
