"""`agent.tune()`: how its updates are executed, chosen on the machine that it runs on."""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError, check_number
from kerasrl_gpu.planning import room
from kerasrl_gpu.resume import architecture
from kerasrl_gpu.tuning.cache import opened
from kerasrl_gpu.tuning.choose import Choice
from kerasrl_gpu.tuning.points import Point, exact_points, free_points
from kerasrl_gpu.tuning.search import search
from kerasrl_gpu.tuning.trials import trials

_UNKNOWN_BYTES = 2**62  # the budget where no device tells one, and nobody stated one
_LEAST, _MOST = 32, 4_096  # batches that are tried where they are free
_KEPT = " It was measured earlier and kept; cache=False measures again."
_ROWS_A_BATCH = 8  # rows that have to be stored for each row of such a batch


def tune(agent, *, free=False, budget=None, seconds=12.0, cache=True, apply=True) -> Choice:
    """Choose how updates are executed, by trying it on this machine, and execute them so.

    The logical batch, the updates that are due and what they learn stay. What is chosen is how
    many rows are computed at a time and how many updates share a device call. Trials compute on
    copies: weights, slots, seeds, counters and pool are afterwards what they were. Nothing is
    tried whose predicted peak lies above the budget.

    Args:
        free: the batch itself may become another, too: a power of two, computed at once. Updates
            stay as many as they are, and so does the replay ratio; what each learns does not.
        budget: bytes that the run may take, "70%" or "6GiB"; None takes the memory's budget.
        seconds: for timing; compiling comes on top.
        cache: True keeps choices in the user's cache directory and finds them there; a path names
            another file; False does neither.
        apply: False only tells what it would choose.

    Returns:
        Choice: the point, the reason in words, every reading.

    Raises:
        ArgumentError: nothing to try yet, a memory or a processor that works on the host, a pool
            that is spilled, a budget below what the smallest point takes, or an argument that
            cannot be honoured.
        EmptyPool: no stored row can start a transition.
    """
    check_number("seconds", seconds, lambda number: number > 0, "seconds above 0")
    store = opened(cache)
    _check_ready(agent)
    budget = agent.memory.budget if budget is None else budget
    plan = agent.plan(micro_batch=agent.batch_size)
    may_bytes = room.spendable(budget, plan.persistent_bytes + agent.memory.nbytes)
    may_bytes = _UNKNOWN_BYTES if may_bytes is None else may_bytes
    key = None if store is None else _key(agent, plan, free, budget)
    points, why = _points(agent, free)
    choice = None if store is None else _fitting(store.get(key), points, may_bytes)
    if choice is None:
        with trials(agent) as one:
            choice = search(
                points,
                one.peak_bytes,
                one.run,
                may_bytes,
                held_bytes=one.held_bytes,
                seconds=seconds,
            )
        choice = choice._replace(reason=choice.reason + why)
        if store is not None:
            store.put(key, choice)
    else:
        choice = choice._replace(reason=choice.reason + _KEPT)
    if apply:
        _apply(agent, choice.point)
    return choice


def _check_ready(agent) -> None:
    if not agent.on_pool or agent.learns_on_host:
        what = f"{type(agent.memory).__name__} is sampled" if not agent.on_pool else "states are"
        raise ArgumentError(
            f"{what} on the host, so there is no device call to tune; use a DeviceMemory, and a "
            "processor that can be traced."
        )
    if not agent.prepared:
        raise ArgumentError(
            "nothing was seen yet, so there is nothing to try; call agent.tune() after some steps "
            "of fit, or pass callbacks=[BatchTuner()] to it."
        )
    if agent.memory.tiers is not None:
        raise ArgumentError(
            "rows of the pool are spilled, and what is fast now need not be when they are back; "
            "call agent.pull() before agent.tune()."
        )
    agent.flush()
    agent.memory.check_can_sample()


def _points(agent, free: bool) -> tuple:
    """(the candidates, why they are no more)."""
    if free:
        least, most = min(_LEAST, agent.batch_size), _most(agent)
        why = "" if most == _MOST else f" More than {most} wait until more rows are stored."
        return free_points(agent.batch_size, agent.updates, least, most), why
    try:
        draws = agent.trainer.learner.draws_at_random()
        why = " A random layer draws other numbers for parts of a batch, so it is not split."
    except ArgumentError as error:
        draws, why = True, f" The batch is not split: {error}"
    points = exact_points(agent.batch_size, agent.updates)
    if not draws:
        return points, ""
    return [point for point in points if point.micro_batch == agent.batch_size], why


def _most(agent) -> int:
    """The largest batch that is tried where it is free: a power of two, or the one there is."""
    stored = agent.memory.nb_entries // _ROWS_A_BATCH
    power = 2 ** (max(1, min(_MOST, stored)).bit_length() - 1)
    return max(agent.batch_size, power)


def _fitting(choice: Choice | None, points: list, may_bytes: int) -> Choice | None:
    """A choice from the cache, unless it is no candidate, or there is less room than it takes.

    The key cannot tell networks apart that Keras cannot describe; one of two such may be split.
    """
    if choice is None or choice.point not in points:
        return None
    fits = any(one.point == choice.point and one.peak_bytes <= may_bytes for one in choice.curve)
    return choice if fits else None


def _apply(agent, point: Point) -> None:
    if point.batch != agent.batch_size:
        agent.set_micro_batch(None)  # rows at a time of the old batch may be parts of the new one
        agent.set_batch_size(point.batch)
    agent.set_micro_batch(None if point.micro_batch == point.batch else point.micro_batch)
    agent.set_updates_per_call(None if point.fused == agent.updates else point.fused)


def _key(agent, plan, free: bool, budget) -> dict:
    """What a choice depends on, as plain values."""
    models = {name: architecture.describe(model) for name, model in agent.networks().items()}
    described = architecture.anonymous([models, agent.optimizer_descriptions])
    # the plan, too, for the pool's size and for a network that Keras cannot describe
    about = json.dumps([described, plan.as_dict()["lines"], agent.passes()], sort_keys=True)
    return {
        "agent": type(agent).__name__,
        "networks": hashlib.sha256(about.encode()).hexdigest(),
        "window": agent.memory.window_length,
        "batch": agent.batch_size,
        "updates": agent.updates,
        "most": _most(agent) if free else None,
        "budget": str(budget),
        "device": engine.device(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        **{name: metadata.version(name) for name in (engine.NAME, "keras", "kerasrl-gpu")},
    }
