"""The plan and the report of an agent: `agent.plan()`, `agent.report()`."""

from __future__ import annotations

import math
from dataclasses import replace

from kerasrl_gpu.errors import ArgumentError, check_count
from kerasrl_gpu.observations import ObservationSpec
from kerasrl_gpu.planning import budgets, engines, graph, passes, room
from kerasrl_gpu.planning import plan as plans
from kerasrl_gpu.planning.budgets import AUTO
from kerasrl_gpu.planning.plan import Plan
from kerasrl_gpu.planning.report import Report, layer_rows


def plan(
    agent, observation=None, *, batch_size=None, micro_batch=None, budget=None, limit=None
) -> Plan:
    """Every byte that a run takes on the device, before it starts; allocates nothing.

    Args:
        observation: an example, as the memory stores it; None takes the one that it has seen.
        batch_size: transitions an update; None takes the agent's.
        micro_batch: transitions that are computed at a time; None takes the agent's.
        budget: what the run may take, see `planning.budgets.parse`; None takes the memory's.
        limit: rows of the pool; None takes the memory's.

    Returns:
        Plan; `print` shows it as a table.

    Raises:
        NotCompiled: `compile` was not called.
        ArgumentError: no observation was seen, or given; a batch that is still "auto"; a number or
            a budget that is none.
        PoolTooLarge: the memory's limit is "auto", and its budget has no room for a pool.
        ShapeError: a model's shapes are not known.
    """
    graphs = _graphs(agent)
    if budget is None and agent.on_pool:
        budget = agent.memory.budget
    budget = budgets.parse(budget)
    sizes = _sizes(agent, batch_size, micro_batch)
    weights = [one for model in agent.networks().values() for one in model.trainable_variables]
    compiled = engines.compiled_by(any(len(one.shape) > 2 for one in weights))
    lines = plans.network_lines(agent.state, _keras_variables(agent), compiled)
    batch, rows = 0, None
    if agent.on_pool:
        spec = _spec(agent, observation)
        limit = None if limit is None else check_count("limit", limit, 1)
        estimate = agent.memory.estimate(spec.example, limit=limit)
        lines, rows = lines + plans.pool_lines(estimate["fields"]), estimate["limit"]
        batch = _batch_bytes(agent, spec, estimate["row_bytes"], compiled)
    if not agent.on_pool or agent.processes_states:  # a copy beside what the pool gave
        batch += _input_bytes(graphs)
    held = passes.rows(agent.passes(), graphs, compiled)
    lines += plans.update_lines(_gradients(agent), held, batch, sizes, compiled)
    lines.append(plans.margin_line(lines, compiled))
    found = Plan(tuple(lines), *sizes, rows)
    return found if budget is None else _within(found, budget, agent)


def report(agent, batch_size=None) -> Report:
    """Parameters, activations and FLOPs of every layer, for acting once and for one update.

    Args:
        batch_size: transitions an update; None takes the agent's.

    Raises:
        NotCompiled: `compile` was not called.
        ArgumentError: the batch is still "auto".
        ShapeError: a model's shapes are not known.
    """
    graphs = _graphs(agent)
    acting = agent.acting()["network"]
    size, _ = _sizes(agent, batch_size, None)
    return Report(layer_rows(graphs, agent.passes(), acting), size)


def _graphs(agent) -> dict:
    agent.check_compiled()
    return {name: graph.trace(model) for name, model in agent.networks().items()}


def _batch_size(agent) -> int:
    if agent.batch_size == AUTO:
        raise ArgumentError(
            "batch_size='auto' is chosen at the first observation, and none was seen yet; pass "
            "plan(batch_size=32), or fix it with agent.set_batch_size(32)."
        )
    return agent.batch_size


def _sizes(agent, batch_size, micro_batch) -> tuple:
    """(batch_size, micro_batch) as whole numbers; the second is at most the first."""
    given = _batch_size(agent) if batch_size is None else batch_size
    batch_size = check_count("batch_size", given, 1)
    if micro_batch is None:
        return batch_size, agent.execution.rows(batch_size)
    micro_batch = check_count("micro_batch", micro_batch, 1)
    if micro_batch > batch_size:
        raise ArgumentError(
            f"micro_batch={micro_batch} is more than the batch has; pass {batch_size} or less."
        )
    return batch_size, micro_batch


def _spec(agent, observation):
    """What observations look like, from the example or from what the memory has seen."""
    if observation is not None:
        return ObservationSpec(observation, agent.memory.keep_dtype)
    if agent.memory.spec is None:
        raise ArgumentError(
            "no observation was seen yet, so a row's bytes are not known; pass "
            "plan(observation=env.observation_space.sample()), processed as the memory stores it."
        )
    return agent.memory.spec


def _batch_bytes(agent, spec, row_bytes: int, compiled) -> int:
    """Bytes of a transition while it is read and learned from."""
    window, span = agent.memory.window_length, agent.rule.span
    rows = window + span + (window if span > 1 else 0)
    seen = window * sum(leaf.nbytes for leaf in spec.fields.values())
    # reward and discount are 4 bytes each, and one says whether the episode terminated
    numbers = agent.memory.action.nbytes + 9
    return rows * row_bytes + (1 + compiled.reads_ahead) * seen + numbers


def _input_bytes(graphs: dict) -> int:
    """Bytes of what the networks take, observations and next ones, a row."""
    return 2 * max(
        sum(one.tensors[place].nbytes for place in one.inputs) for one in graphs.values()
    )


def _keras_variables(agent) -> dict:
    optimizers = agent.trainer.mirror.optimizers
    return {
        name: (model.variables, optimizers[name].keras.variables)
        for name, model in agent.networks().items()
    }


def _gradients(agent) -> dict:
    """Network -> (bytes of its gradients, of their sum, of its slots, sets made of them)."""
    found = {}
    for name, one in agent.trainer.mirror.optimizers.items():
        inner = getattr(one.keras, "inner_optimizer", one.keras)
        clips = any((inner.clipnorm, inner.clipvalue, inner.global_clipnorm))
        weights = agent.networks()[name].trainable_variables
        summed = 4 * sum(math.prod(weight.shape) for weight in weights)  # whatever they are, in f32
        slots = plans.nbytes(one.keras.variables)
        found[name] = plans.nbytes(weights), summed, slots, 2 * clips
    return found


def _within(found: Plan, budget, agent) -> Plan:
    """The plan beside the bytes that the budget leaves to it."""
    held = found.persistent_bytes + (agent.memory.device_bytes if agent.on_pool else 0)
    may = room.spendable(budget, held)
    return replace(found, budget_bytes=may)
