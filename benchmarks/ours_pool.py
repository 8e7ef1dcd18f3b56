"""kerasrl_gpu's DeviceMemory: milliseconds per read of a batch of 32, or bytes per transition."""

import keras
import numpy as np
import ours_adapters
from peers import side

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent

EPISODE = 1_000
BYTES_EPISODES = 10


def append_episodes(memory, make_observation, make_action, rows):
    """Append in keras-rl's order: the row after a terminal one holds the final observation."""
    for i in range(rows):
        step = i % (EPISODE + 1)
        memory.append(make_observation(i), make_action(i), float(step % 3), step == EPISODE - 1)


def frame_maker(seed):
    block = np.random.default_rng(seed).integers(0, 256, (100, 84, 84), np.uint8)
    return lambda i: block[i % 100]


def sample_ms(args):
    memory = DeviceMemory(limit=args.frames, window_length=4)
    append_episodes(memory, frame_maker(args.seed), lambda i: i % 4, args.frames)
    clock = side.StepClock(args.warmup, args.window, args.windows)
    read = ours_adapters.batch_reader(memory, 32)
    clock.restart()
    for _ in range(clock.total_steps):
        read()
        clock.step()
    return clock.ms_per_step(), clock.compile_s()


def transition_bytes(memory, make_observation, action):
    """Bytes on the device per transition; final-observation rows are charged to the transitions."""
    append_episodes(memory, make_observation, lambda i: action, memory.limit)
    return [memory.nbytes / (BYTES_EPISODES * EPISODE)], None


def atari_bytes(args):
    """The pool of a DQN agent: it is the agent that says what an action is."""
    memory = DeviceMemory(limit=BYTES_EPISODES * (EPISODE + 1), window_length=4)
    frames = keras.Input((4, 84, 84), dtype="uint8")
    q_values = keras.layers.Dense(4)(keras.layers.Flatten()(frames))
    agent = DQNAgent(model=keras.Model(frames, q_values), nb_actions=4, memory=memory)
    agent.compile(keras.optimizers.Adam())
    return transition_bytes(memory, frame_maker(args.seed), 1)


def float17_bytes(args):
    """The pool of a DDPG agent with 17 float32 observed and 6 float32 done."""
    memory = DeviceMemory(limit=BYTES_EPISODES * (EPISODE + 1), window_length=1)
    observation, action = keras.Input((1, 17)), keras.Input((6,))
    flat = keras.layers.Flatten()(observation)
    value = keras.layers.Dense(1)(keras.layers.Concatenate()([action, flat]))
    agent = DDPGAgent(
        nb_actions=6,
        actor=keras.Model(observation, keras.layers.Dense(6)(flat)),
        critic=keras.Model([action, observation], value),
        critic_action_input=action,
        memory=memory,
    )
    agent.compile(keras.optimizers.Adam())
    zeros = np.zeros(17, np.float32)
    return transition_bytes(memory, lambda i: zeros, np.zeros(6, np.float32))


WORKS = {"sample": sample_ms, "atari": atari_bytes, "float17": float17_bytes}


def add_arguments(parser):
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--frames", type=int, default=1_000_000, help="rows in the pool")


def main():
    args = side.parse(__doc__, add_arguments)
    values, compile_s = WORKS[args.work](args)
    versions, device = ours_adapters.versions()
    notes = {"frames": args.frames} if args.work == "sample" else {}
    side.report(values, device, versions, compile_s, **notes)


if __name__ == "__main__":
    main()
