"""What a run was planned to take and what it took, in a process of its own:

    python planned_run.py NETWORK BATCH [POLICY [MICRO_BATCH]]

prints {"planned": bytes, "measured": bytes} as JSON. NETWORK is "nature", "dqn-256-256" or
"ddpg-256-256". Measured is the rise of the resident memory over what the imports took, to its
highest point in the first updates; the pool is written in full, because a host gives its pages
only then.
"""

import json
import sys

import keras
import numpy as np

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, engine, networks, probes

OBSERVED, NB_ACTIONS = 17, 6


def dense(x, hidden, outputs, activation=None):
    for units in hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.layers.Dense(outputs, activation=activation)(x)


def nature(batch_size):
    model = networks.nature_cnn((84, 84), NB_ACTIONS)
    memory = DeviceMemory(batch_size + 8, window_length=4)
    return np.zeros((84, 84), np.uint8), _dqn(model, memory, batch_size)


def dqn(hidden, batch_size):
    seen = keras.Input((1, OBSERVED))
    model = keras.Model(seen, dense(keras.layers.Flatten()(seen), hidden, NB_ACTIONS))
    memory = DeviceMemory(batch_size + 8)
    return np.zeros(OBSERVED, np.float32), _dqn(model, memory, batch_size)


def _dqn(model, memory, batch_size):
    return DQNAgent(
        model, nb_actions=NB_ACTIONS, memory=memory, batch_size=batch_size, nb_steps_warmup=0,
        target_model_update=0.01, delta_clip=1.0, seed=1,
    )  # fmt: skip


def ddpg(hidden, batch_size):
    seen, action = keras.Input((1, OBSERVED)), keras.Input((NB_ACTIONS,))
    flat = keras.layers.Flatten()(seen)
    actor = keras.Model(seen, dense(flat, hidden, NB_ACTIONS, "tanh"))
    both = keras.layers.Concatenate()([action, flat])
    agent = DDPGAgent(
        NB_ACTIONS, actor, keras.Model([action, seen], dense(both, hidden, 1)), action,
        DeviceMemory(batch_size + 8), batch_size=batch_size, nb_steps_warmup_critic=0,
        nb_steps_warmup_actor=0, seed=1,
    )  # fmt: skip
    return np.zeros(OBSERVED, np.float32), agent


def make(name, batch_size):
    """(an observation, the agent)."""
    kind, *units = name.split("-")
    if kind == "nature":
        return nature(batch_size)
    return {"dqn": dqn, "ddpg": ddpg}[kind](list(map(int, units)), batch_size)


def main(name, batch_size, policy="float32", micro_batch=None):
    keras.mixed_precision.set_dtype_policy(policy)
    engine.to_host(engine.zeros((1,), "float32"))  # the device's own threads and buffers
    before = probes.process_rss()
    observation, agent = make(name, int(batch_size))
    agent.compile(keras.optimizers.Adam(1e-3))
    agent.set_micro_batch(micro_batch and int(micro_batch))
    plan = agent.plan(observation)
    agent.training = True
    agent.step = 1
    for _ in range(2):
        agent.forward(observation)
        fill(agent.memory)
        agent.backward(1.0, terminal=False)
        agent.flush()
    measured = probes.max_rss_bytes() - before
    print(json.dumps({"planned": plan.peak_bytes, "measured": measured}))


def fill(memory):
    """Write every row of the pool, all of them starts."""
    memory.allocate()
    if len(memory.ring) == memory.limit:
        return
    write, rows = engine.compile_fill(), np.zeros((memory.limit, memory.layout.row_bytes), np.uint8)
    memory.pool = write(memory.pool, 0, rows)
    while len(memory.ring) < memory.limit:
        memory.ring.claim(start=True, ending=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
