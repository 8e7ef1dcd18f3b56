"""Whether an agent is like the one that wrote a checkpoint, but for what was allowed to differ."""

from __future__ import annotations

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError, CheckpointError
from kerasrl_gpu.names import class_name, same_class
from kerasrl_gpu.resume import architecture, parts, saving
from kerasrl_gpu.run import Options

# A pool of another size takes what fits, and a run goes on executed as it was; what belongs to the
# networks' shapes cannot change.
_MAY_DIFFER = (
    *("memory.limit", "memory.budget", "memory.seed"),
    *("micro_batch", "updates_per_call"),
)
_FIXED = ("nb_actions", "memory", "enable_dueling_network", "critic_action_input_idx")


def allowed(agent, allow) -> tuple:
    """The names in `allow`; raises ArgumentError where one is nothing that could differ."""
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    allow = tuple("network" if name in agent.networks() else name for name in allow)
    named = [*agent.get_config(), *agent.parts(), *Options._fields]
    named += ["network", "optimizer", "environment"]
    unknown = [name for name in allow if name.partition(".")[0] not in named]
    if unknown:
        raise ArgumentError(f"allow={unknown}; pass some of {sorted(set(named))}.")
    return allow


def is_left(name, allow) -> bool:
    """Whether a part goes on as it is: who allows it, or one of its arguments, keeps the part."""
    return any(one.partition(".")[0] == name for one in allow)


def check(agent, saved, allow, report) -> None:
    """Compare classes, arguments and parts.

    Args:
        saved: `checkpoint.Saved`.
        allow: names of what may differ; see `restoring.load`.
        report: gets a line in `ignored` for what does.

    Raises:
        CheckpointError: something differs that was not allowed; names all of it.
    """
    _check_class(agent, saved)
    _check_config(agent, saved.state, allow, report)
    for name, part in agent.parts().items():
        if not is_left(name, allow):
            parts.check(name, part, saved.state["parts"].get(name))
    if saved.manifest["backend"] != engine.NAME:
        report.ignored.append(
            f"backend {saved.manifest['backend']}: this is {engine.NAME}; the run goes on, but not "
            "bit for bit"
        )


def _check_class(agent, saved) -> None:
    theirs, ours = saved.manifest["agent"], class_name(agent)
    if not same_class(theirs, ours):
        raise CheckpointError(
            f"{saved.path} was written by {theirs.replace(':', '.')}, this agent is "
            f"{ours.replace(':', '.')}. Resume with an agent of that class, or let "
            "kerasrl_gpu.load(path) build it."
        )


def _check_config(agent, state, allow, report) -> None:
    theirs, ours = _arguments(state["config"]), _arguments(saving.told(agent.get_config()))
    # what the user's own objects say of themselves may change as they go; it is restored instead
    own = tuple(f"{n}." for n, part in state["parts"].items() if part and not part["description"])
    refused = {}
    for name in {**theirs, **ours}:
        there, here = theirs.get(name), ours.get(name)
        if there == here or name in _MAY_DIFFER or name.startswith(own):
            continue
        if name == "seed" and not agent.runs.seeded:  # a run without one takes the checkpoint's
            continue
        if not any(name == one or name.startswith(f"{one}.") for one in allow):
            was = "drawn" if name == "seed" and not state["agent"]["seeded"] else repr(there)
            refused[name] = f"{name} was {was} in the checkpoint and is {here!r} here"
            continue
        report.ignored.append(f"{name}={there!r}: {here!r} holds, as allowed")
    if refused:
        raise CheckpointError(f"{'; '.join(refused.values())}. Pass what it was{_or(refused)}.")


def _or(refused) -> str:
    """What to allow, unless that could not be honoured."""
    roots = tuple(dict.fromkeys(name.partition(".")[0] for name in refused))
    return "" if set(roots) & set(_FIXED) else f", or allow={roots!r} to change it on purpose"


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


def check_networks(agent, saved, allow, report) -> None:
    """Compare what Keras says of the networks and optimizers; see `check`."""
    # shapes first, before anybody is told to allow what cannot be
    agent.trainer.check({"online": saved.state["trainer"]["online"]})
    networks = {n: architecture.describe(m) for n, m in agent.networks().items() if m.built}
    for word, held in (("network", networks), ("optimizer", agent.optimizer_descriptions)):
        for name, here in held.items():
            there = saved.manifest[f"{word}s"].get(name, {"missing": ""})
            difference = architecture.difference(there, here)
            if difference is None:
                continue
            if word not in allow:
                raise CheckpointError(
                    f"the {word} {name!r} is another one: {difference}. Build it as it was, or "
                    f"pass allow=({word!r},) to go on with this one's settings."
                )
            report.ignored.append(f"{word} {name}: {difference}, allowed")
