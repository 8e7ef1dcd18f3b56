"""Giving an agent what a checkpoint holds, after a look at whether it fits."""

from __future__ import annotations

from kerasrl_gpu import checkpoint, execution
from kerasrl_gpu.errors import ArgumentError, CheckpointError
from kerasrl_gpu.planning.budgets import AUTO
from kerasrl_gpu.resume import architecture, comparing, memory, parts
from kerasrl_gpu.resume.report import Report
from kerasrl_gpu.runs import Left


def load(agent, path, *, allow=()) -> Report:
    """Take over everything that a checkpoint holds; `fit(..., resume=True)` goes on there.

    The agent has to be built and compiled like the one that wrote it; `kerasrl_gpu.load` does
    that from the checkpoint alone.

    Args:
        path: a run directory (its newest checkpoint counts) or one checkpoint.
        allow: names of what may differ: an argument ("gamma", "batch_size"), "policy",
            "processor", "network", "optimizer" (its learning rate holds; one of another kind
            starts its slots afresh), an argument of `fit` ("nb_max_episode_steps"),
            "environment" (the open episode is closed). What is named goes on as it is here. The
            memory's limit may always differ: the newest entries are kept.

    Returns:
        Report: restored, absent, ignored.

    Raises:
        CheckpointError: there is none, it is damaged, or it does not fit; says what is there and
            what to do.
        PoolTooLarge: there is no room for its rows.
        ArgumentError: inside `fit` or `test`, or the model waits for an observation to be built on.
        NotCompiled: `compile` was not called.
    """
    if agent.in_loop:
        raise ArgumentError("load was called inside fit or test; call it before or after.")
    agent.check_compiled()
    allow = comparing.allowed(agent, allow)
    saved = checkpoint.open_newest(path, pool=agent.on_pool)
    state = saved.state
    report = Report(saved.path, state["agent"]["step"])
    _take_sizes(agent, state["config"])
    comparing.check(agent, saved, allow, report)
    if agent.trainer is None:  # what waits for its first input has no description yet
        _prepare(agent, state)
    comparing.check_networks(agent, saved, allow, report)
    _prepare(agent, state)
    networks = _fitting(agent, state["trainer"], allow, report)
    _check_memory(agent, state["memory"], saved, allow)
    # nothing is refused from here on
    restore_parts(agent, state["parts"], allow, report)
    _restore_memory(agent, state["memory"], saved, allow, report)
    agent.trainer.set_state(networks, rates="optimizer" not in allow)
    report.restored += ["weights", "targets"] + ["optimizer slots"] * ("slots" in networks)
    _restore_run(agent, state, allow, report)
    parts.set_global_generators(state["generators"])
    report.restored.append("random generators")
    agent.runs.resumed = report
    return report


def load_weights(agent, path) -> None:
    """Give an agent the networks and targets of a checkpoint; nothing else of it is read.

    Args:
        path: a run directory (its newest checkpoint counts) or one checkpoint.

    Raises:
        CheckpointError: there is none, it is damaged, or its networks have other shapes.
    """
    saved = checkpoint.open_newest(path)
    online = saved.state_part("trainer", "online")
    if agent.trainer is not None:
        agent.trainer.set_weights(online, saved.state_part("trainer", "target"))
        agent.take_weights()
        return
    for name, model in agent.networks().items():  # the targets begin as copies
        architecture.set_weights(model, online[name])


def _take_sizes(agent, config) -> None:
    """What this agent leaves open is as it was: another batch or pool would be another run."""
    if agent.batch_size == AUTO:
        agent.batch_size = config["batch_size"]
    limit = config["memory"]["config"].get("limit")
    if agent.on_pool and agent.memory.limit == AUTO and limit != AUTO:
        agent.memory.preferred_limit = limit


def _prepare(agent, state) -> None:
    """See to it that networks and slots exist; models that wait for their first input are built.

    All of it now: preparing shows the processor a state, which it must not see once it is restored.
    """
    example = None if state["probe"] is None else state["probe"]["state"]
    if agent.prepared or (example is None and agent.trainer is not None):
        return
    if example is None:
        raise ArgumentError(
            "the model is not built, and the checkpoint shows no observation to build it on; "
            "start the model with keras.Input(shape)."
        )
    first = (state["memory"] or {}).get("example", example[-1])  # which decided what a pool holds
    agent.prepare(first, example)


def _fitting(agent, state, allow, report) -> dict:
    """What of `Trainer.get_state` the agent can take; slots of another optimizer stay behind."""
    try:
        agent.trainer.check(state)
        return state
    except CheckpointError:
        if "optimizer" not in allow:
            raise
    state = {name: value for name, value in state.items() if name != "slots"}
    agent.trainer.check(state)
    report.ignored.append("optimizer slots: those of this optimizer begin afresh")
    return state


def restore_parts(agent, saved, allow=(), report=None) -> None:
    """Put policies, noise and processors where they were, but for those that may be others."""
    report = report or Report()
    for name, part in agent.parts().items():
        if comparing.is_left(name, allow):
            report.ignored.append(f"{name}: goes on as it is, allowed")
            continue
        if part is None:
            continue
        report.ignored += parts.replaced_arguments(name, part, saved[name])
        parts.set_state(part, saved[name])
        report.restored.append(name)
        for attribute, reason in saved[name]["missing"].items():
            report.absent.append(f"{name}.{attribute}: {reason}")


def _goes_on(agent, state, allow) -> bool:
    """Whether the memory stays as it is: one of another kind, or of the user's own, allowed."""
    both_pools = agent.on_pool and (state is None or "ring" in state)
    return not both_pools and comparing.is_left("memory", allow)


def _check_memory(agent, state, saved, allow) -> None:
    if state is None or _goes_on(agent, state, allow):
        return
    if agent.on_pool:
        memory.check(agent.memory, state, saved)
    else:
        parts.check("memory", agent.memory, state)


def _restore_memory(agent, state, saved, allow, report) -> None:
    kind = type(agent.memory).__name__
    if _goes_on(agent, state, allow):
        report.ignored.append("memory: goes on as it is, allowed")
    elif agent.on_pool:
        if state is None:
            memory.clear(agent.memory)
            report.absent.append("memory: it was empty")
            return
        lost = memory.set_state(agent.memory, state, saved)
        report.restored.append(f"memory ({agent.memory.nb_entries:,} rows)")
        if lost:
            report.ignored.append(f"memory: {lost:,} oldest rows, more than limit allows")
    elif state is None:
        report.absent.append(f"memory: {kind} has no get_state(), so what it held is gone")
    else:
        parts.set_state(agent.memory, state)
        memory.set_window(agent.memory, state["window"])
        report.restored.append("memory")


def _restore_run(agent, state, allow, report) -> None:
    run, environment = state["run"], state["environment"]
    held = state["agent"]
    if "seed" in allow and agent.runs.seeded:
        held = {**held, "seed": agent.seed, "seeded": True}
    if held["shown"] is not None:  # the answer that waits is told by the object it is about
        held = {**held, "shown": None if run is None else run["observation"]}
    agent.set_state(held)
    report.restored += ["counters"]
    _restore_execution(agent, held, report)
    agent.runs.leave(None)
    if run is not None:
        agent.runs.leave(Left(run, snapshot=environment["snapshot"], reason=environment["reason"]))


def _restore_execution(agent, state, report) -> None:
    """As the run was executed, whatever was passed here; what was allowed may leave no such way."""
    if "execution" not in state:
        return
    try:
        execution.take(agent, execution.Execution(**state["execution"]))
    except ArgumentError as error:
        report.ignored.append(f"execution: goes on as it is here: {error}")
