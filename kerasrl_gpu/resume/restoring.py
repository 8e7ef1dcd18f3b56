"""Giving an agent what a checkpoint holds, after a look at whether it fits."""

from __future__ import annotations

from kerasrl_gpu import checkpoint, engine
from kerasrl_gpu.errors import ArgumentError, CheckpointError
from kerasrl_gpu.names import class_name, same_class
from kerasrl_gpu.resume import architecture, memory, parts, saving
from kerasrl_gpu.resume.report import Report
from kerasrl_gpu.run import Options
from kerasrl_gpu.runs import Left

# A pool of another size takes what fits.
_MAY_DIFFER = ("memory.limit", "memory.budget_bytes", "memory.seed")


def load(agent, path, *, allow=()) -> Report:
    """Take over everything that a checkpoint holds; `fit(..., resume=True)` goes on there.

    The agent has to be built and compiled like the one that wrote it; `kerasrl_gpu.load` does
    that from the checkpoint alone.

    Args:
        path: a run directory (its newest checkpoint counts) or one checkpoint.
        allow: names of what may differ: an argument ("gamma", "batch_size"), "policy",
            "processor", "network", "optimizer" (the learning rate given here holds), an argument
            of `fit` ("nb_max_episode_steps"), "environment" (the open episode is closed). The
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
    allow = allowed(agent, allow)
    saved = checkpoint.open_newest(path, pool=agent.on_pool)
    state = saved.state
    report = Report(saved.path, state["agent"]["step"])
    _check_agent(agent, saved)
    _check_config(agent, state, allow, report)
    if agent.trainer is None:  # what waits for its first input has no description yet
        _prepare(agent, state)
    _check_descriptions(agent, saved, allow, report)
    _check_backend(saved, report)
    _check_parts(agent, state["parts"], allow)
    _prepare(agent, state)
    agent.trainer.check(state["trainer"])
    _check_memory(agent, state["memory"], saved, allow)
    # nothing is refused from here on
    restore_parts(agent, state["parts"], allow, report)
    _restore_memory(agent, state["memory"], saved, allow, report)
    _restore_trainer(agent, state["trainer"], allow, report)
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
        return
    for name, model in agent.networks().items():  # the targets begin as copies
        architecture.set_weights(model, online[name])


def allowed(agent, allow) -> tuple:
    """The names in `allow`; raises ArgumentError where one is nothing that could differ."""
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    named = [*agent.get_config(), *agent.parts(), *Options._fields]
    named += ["network", "optimizer", "environment"]
    unknown = [name for name in allow if name.partition(".")[0] not in named]
    if unknown:
        raise ArgumentError(f"allow={unknown}; pass some of {sorted(set(named))}.")
    return allow


def _check_agent(agent, saved) -> None:
    ours = class_name(agent)
    if not same_class(saved.manifest["agent"], ours):
        raise CheckpointError(
            f"{saved.path} was written by {saved.manifest['agent'].replace(':', '.')}, this agent "
            f"is {ours.replace(':', '.')}. Resume with an agent of that class, or let "
            "kerasrl_gpu.load(path) build it."
        )


def _check_config(agent, state, allow, report) -> None:
    theirs, ours = _arguments(state["config"]), _arguments(saving.told(agent.get_config()))
    # what the user's own objects say of themselves may change as they go; it is restored instead
    own = tuple(f"{n}." for n, part in state["parts"].items() if part and not part["description"])
    for name in {**theirs, **ours}:
        there, here = theirs.get(name), ours.get(name)
        if there == here or name in _MAY_DIFFER or name.startswith(own):
            continue
        if name == "seed" and not agent.runs.seeded:  # a run without one takes the checkpoint's
            continue
        if not _allowed(name, allow):
            raise CheckpointError(_sentence(name, there, here))
        report.ignored.append(f"{name}={there!r}: {here!r} was allowed")


def _sentence(name, there, here) -> str:
    root = name.partition(".")[0]
    return (
        f"{name} was {there!r} in the checkpoint and is {here!r} here. Pass what it was, or "
        f"allow=({root!r},) to change it on purpose."
    )


def _allowed(name, allow) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allow)


def _arguments(config) -> dict:
    """The flat config without what an annealed policy sets on its inner one as it goes."""
    flat = _flat(config)
    annealed = {
        f"{name.removesuffix('attr')}inner_policy.{value}"
        for name, value in flat.items()
        if name.endswith("policy.attr")
    }
    return {name: value for name, value in flat.items() if name not in annealed}


def _flat(config, path="") -> dict:
    """{"memory.limit": ...}; the word "config" between an object and its arguments is left out."""
    if not isinstance(config, dict):
        return {path: config.tolist() if hasattr(config, "tolist") else config}
    found = {}
    for key, value in config.items():
        inner = path if key == "config" else f"{path}.{key}".strip(".")
        found |= _flat(value, inner)
    return found


def _check_descriptions(agent, saved, allow, report) -> None:
    ours = {"networks": {}, "optimizers": agent.optimizer_descriptions}
    ours["networks"] = {n: architecture.describe(m) for n, m in agent.networks().items() if m.built}
    for kind, held in ours.items():
        for name, here in held.items():
            there = saved.manifest[kind].get(name, {"missing": ""})
            difference = architecture.difference(there, here)
            if difference is None:
                continue
            word = kind[:-1]
            if word not in allow:
                raise CheckpointError(
                    f"the {word} {name!r} is another one: {difference}. Build it as it was, or "
                    f"pass allow=({word!r},) to go on with this one's settings."
                )
            report.ignored.append(f"{word} {name}: {difference}, allowed")


def _check_backend(saved, report) -> None:
    theirs = saved.manifest["backend"]
    if theirs != engine.NAME:
        report.ignored.append(
            f"backend {theirs}: this is {engine.NAME}; the run goes on, but not bit for bit"
        )


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


def _check_parts(agent, saved, allow) -> None:
    for name, part in agent.parts().items():
        if not _is_left(name, allow):
            parts.check(name, part, saved.get(name))


def _is_left(name, allow) -> bool:
    """Whether a part goes on as it is: who allows one of its arguments keeps the part."""
    return any(one.partition(".")[0] == name for one in allow)


def restore_parts(agent, saved, allow=(), report=None) -> None:
    """Put policies, noise and processors where they were."""
    report = report or Report()
    for name, part in agent.parts().items():
        if _is_left(name, allow):
            report.ignored.append(f"{name}: goes on as it is, allowed")
            continue
        if part is None:
            continue
        parts.set_state(part, saved[name])
        report.restored.append(name)
        for attribute, reason in saved[name]["missing"].items():
            report.absent.append(f"{name}.{attribute}: {reason}")


def _goes_on(agent, state, allow) -> bool:
    """Whether the memory stays as it is: one of another kind, or of the user's own, allowed."""
    both_pools = agent.on_pool and (state is None or "ring" in state)
    return not both_pools and _is_left("memory", allow)


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


def _restore_trainer(agent, state, allow, report) -> None:
    agent.trainer.set_state(state, rates="optimizer" not in allow)
    report.restored += ["weights", "targets", "optimizer slots"]


def _restore_run(agent, state, allow, report) -> None:
    run, environment = state["run"], state["environment"]
    held = state["agent"]
    if "seed" in allow and agent.runs.seeded:
        held = {**held, "seed": agent.seed, "seeded": True}
    if held["shown"] is not None:  # the answer that waits is told by the object it is about
        held = {**held, "shown": None if run is None else run["observation"]}
    agent.set_state(held)
    report.restored += ["counters"]
    agent.runs.leave(None)
    if run is not None:
        agent.runs.leave(Left(run, snapshot=environment["snapshot"], reason=environment["reason"]))
