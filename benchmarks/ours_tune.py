"""What `agent.tune()` chooses, beside an exhaustive sweep of everything that it could choose.

The figure is how many times faster the best point of the sweep is than the chosen one: 1 is the
best choice. The sweep has every divisor of the batch and of the updates, timed in turns; its curve
(samples/s, median) is in the line, as is how long tuning took.
"""

import contextlib
import statistics
import time

import keras
import numpy as np
import ours_adapters
from networks import mlp
from peers import side

from kerasrl_gpu import DeviceMemory, DQNAgent
from kerasrl_gpu.networks import nature_cnn

ROWS, SAMPLE_S = 4_000, 0.05


def dense_agent(hidden, seed):
    observation = keras.Input((1, 8))
    model = keras.Model(observation, mlp(keras.layers.Flatten()(observation), hidden, 4))
    return agent_of(model, DeviceMemory(ROWS), np.zeros(8, np.float32), 256, 4, seed)


def nature_agent(seed):
    model, memory = nature_cnn((84, 84), nb_actions=4), DeviceMemory(ROWS, window_length=4)
    return agent_of(model, memory, np.zeros((84, 84), np.uint8), 64, 2, seed)


def agent_of(model, memory, observation, batch_size, updates, seed):
    """A DQN whose pool holds random observations, ready to learn."""
    agent = DQNAgent(
        model=model,
        nb_actions=4,
        memory=memory,
        batch_size=batch_size,
        updates=updates,
        target_model_update=1e-2,
        delta_clip=1.0,
        seed=seed,
    )
    agent.compile(keras.optimizers.Adam(1e-4))
    random = np.random.default_rng(seed)
    for i in range(ROWS):
        shown = random.normal(scale=60, size=observation.shape).astype(observation.dtype)
        memory.append(shown, i % 4, float(i % 3), i % 500 == 499)
    agent.prepare(observation)
    return agent


WORKS = {
    "mlp_64_64": lambda seed: dense_agent((64, 64), seed),
    "mlp_256_256": lambda seed: dense_agent((256, 256), seed),
    "nature_cnn": nature_agent,
}


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


def sweep(runs, rounds, seed):
    """{point: median samples/s}; every point once a round, in an order drawn anew."""
    calls = {point: calls_for(run) for point, run in runs.items()}
    rates, random = {point: [] for point in runs}, np.random.default_rng(seed)
    for _ in range(rounds):
        for index in random.permutation(len(runs)):
            point = list(runs)[index]
            start = time.perf_counter()
            for _ in range(calls[point]):
                runs[point]()
            seconds = time.perf_counter() - start
            rates[point].append(calls[point] * point.batch * point.fused / seconds)
    return {point: statistics.median(found) for point, found in rates.items()}


def calls_for(run):
    """How many calls last about SAMPLE_S; the first ones compile."""
    run()
    run()
    start = time.perf_counter()
    run()
    return max(1, round(SAMPLE_S / (time.perf_counter() - start)))


def add_arguments(parser):
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--figure", choices=("slower", "seconds"), default="slower")


def main():
    args = side.parse(__doc__, add_arguments)
    agent = WORKS[args.work](args.seed)
    start = time.perf_counter()
    choice = agent.tune(cache=False, apply=False)
    took_s = time.perf_counter() - start
    versions, device = ours_adapters.versions()
    notes = {"chosen": choice.point._asdict(), "tuning_s": round(took_s, 1)}
    if args.figure == "seconds":
        return side.report([took_s], device, versions, None, **notes)
    with contextlib.ExitStack() as opened:
        runs = ours_adapters.update_calls(
            agent, divisors(agent.batch_size), divisors(agent.updates), opened
        )
        rates = sweep(runs, args.windows, args.seed)
    best = max(rates, key=rates.get)
    notes["best"] = best._asdict()
    notes["samples_per_s"] = [[p.micro_batch, p.fused, round(r)] for p, r in rates.items()]
    side.report([rates[best] / rates[choice.point]], device, versions, None, **notes)


if __name__ == "__main__":
    main()
