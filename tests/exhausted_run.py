"""Training that runs out of memory, in a process of its own:

    python exhausted_run.py [SEED [UPDATES_PER_CALL]]

At an update drawn by SEED the process may take no more address space than it has, and somebody else
has taken what its framework keeps for later. The hook gives a part of that back, which is too
little for the whole batch, and has fewer rows computed at a time; two updates later the memory is
back. Prints JSON: the rows of every try, the updates made, and how far the weights are from those
of a run that had memory and computed as few rows from there on, relative to their size. That run
donates, and this one does not.
"""

import json
import resource
import sys

import gymnasium
import keras
import numpy as np
from gymnasium.spaces import Box, Discrete

from kerasrl_gpu import DeviceMemory, DQNAgent, engine
from kerasrl_gpu.policy import EpsGreedyQPolicy

# an activation of 128 MiB, and some of them a batch; 8 kB of weights
BATCH, UNITS, STEPS, UPDATES = 65_536, 512, 8, 2
MIB, BLOCK = 2**20, 32 * 2**20
ROOM = 192 * MIB  # for what kernels take themselves: XLA waits for ever where they get none
SHRINK = 4  # at once: TensorFlow waits 10 s for memory before it gives up


class Drift(gymnasium.Env):
    """Shows numbers that no action changes."""

    observation_space, action_space = Box(-np.inf, np.inf, (4,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.random = np.random.default_rng(3)
        return self._shown(), {}

    def step(self, action):
        shown = self._shown()
        return shown, float(shown.sum()), False, False, {}

    def _shown(self):
        return self.random.normal(size=4).astype(np.float32)


class Squeeze(keras.callbacks.Callback):
    """Takes the memory away at one step and gives it back two steps later.

    Args:
        at: the step.
        really: False computes fewer rows from there on without need, which is what to compare with.
    """

    def __init__(self, at, really):
        self.at, self.really, self.taken, self.tried = at, really, [], []

    def on_train_begin(self, logs=None):
        self.model.trainer.careful = self.really
        self.model.trainer.on_exhausted = self.shrink

    def on_step_end(self, step, logs=None):
        self.model.flush()
        # compilers abort the process where they find no memory: every program is there before
        if self.model.step == 1:
            self.model.set_micro_batch(BATCH // SHRINK)
        elif self.model.step == 2:
            self.model.set_micro_batch(None)
        elif self.model.step == self.at and not self.really:
            self.model.set_micro_batch(BATCH // SHRINK)
        elif self.model.step == self.at:
            self.tried.append(BATCH)
            self.take_all()
            limit(address_space() + ROOM)
        elif self.model.step == self.at + 2:
            limit(resource.RLIM_INFINITY)
            self.taken.clear()

    def take_all(self):
        """Use up what the framework keeps for later; it may take no more than a block anew."""
        before = address_space()
        limit(before + 3 * BLOCK // 2)
        while address_space() < before + BLOCK // 2:
            self.taken.append(engine.zeros((BLOCK,), "uint8"))
            engine.to_host(engine.take_rows(self.taken[-1], np.int32([0])))

    def shrink(self, error):
        del self.taken[-8:-1]  # side by side, and half of what the whole batch takes
        rows = self.tried[-1] // SHRINK
        self.tried.append(rows)
        self.model.set_micro_batch(rows)
        return rows == BATCH // SHRINK


def address_space() -> int:
    """VmSize, bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit(nbytes) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, resource.RLIM_INFINITY))


def make(updates_per_call):
    layers = [
        keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=units))
        for units in (UNITS, 2)
    ]
    start = [keras.Input((1, 4)), keras.layers.Flatten(), layers[0], keras.layers.ReLU()]
    agent = DQNAgent(
        model=keras.Sequential([*start, layers[1]]), nb_actions=2, memory=DeviceMemory(BATCH),
        policy=EpsGreedyQPolicy(eps=1.0), batch_size=BATCH, nb_steps_warmup=1, updates=UPDATES,
        updates_per_call=updates_per_call, target_model_update=0.1, delta_clip=1.0, seed=1,
    )  # fmt: skip
    agent.compile(keras.optimizers.SGD(0.01, momentum=0.9))
    return agent


def main(seed=0, updates_per_call=UPDATES):
    at = int(np.random.default_rng(int(seed)).integers(4, STEPS - 2))
    runs = [Squeeze(at, really=True), Squeeze(at, really=False)]
    found, made = [], []
    for squeeze in runs:
        agent = make(int(updates_per_call))
        agent.fit(Drift(), nb_steps=STEPS, callbacks=[squeeze], verbose=0)
        found.append([*agent.model.get_weights(), *agent.target_model.get_weights()])
        made.append(agent.trainer.nb_updates)
    off = [np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in zip(*found, strict=True)]
    print(json.dumps({"tried": runs[0].tried, "made": made, "off": float(max(off))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
