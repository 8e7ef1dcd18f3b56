"""The user's Keras objects and the state: who holds the newest weights, and who has to be told."""

from __future__ import annotations

import keras
import numpy as np

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError, CheckpointError
from kerasrl_gpu.state import TrainState, Weights

_KINDS = Weights._fields


class Mirror:
    """Keeps the user's models and optimizers, and a TrainState, in step when asked to.

    Args:
        models: name -> built keras.Model that learns.
        targets: names of the networks that have a slow copy.
        optimizers: name -> unbuilt keras optimizer.
    """

    def __init__(self, models: dict, targets: tuple, optimizers: dict):
        _check_apart(models)
        self._targets = targets
        self._variables = {
            name: (model.trainable_variables, model.non_trainable_variables)
            for name, model in models.items()
        }
        self.optimizers = {
            name: engine.Optimizer(optimizer, self._variables[name][0])
            for name, optimizer in optimizers.items()
        }
        self._rates = {name: _rate_of(one) for name, one in optimizers.items()}
        self._published, self._seen = None, {}

    def start(self) -> TrainState:
        """The first state: the models' weights, targets as copies, fresh optimizer slots."""
        online = {name: self._adopt(name) for name in self._variables}
        state = TrainState(
            online=online,
            target={name: Weights(*map(engine.clone, online[name])) for name in self._targets},
            slots={name: optimizer.slots for name, optimizer in self.optimizers.items()},
        )
        self._note(state)
        return state

    def publish(self, state: TrainState) -> None:
        """Give the Keras objects what the state holds, unless they have it."""
        if state is self._published:
            return
        for name, pair in self._variables.items():
            for leaves, variables in zip(state.online[name], pair, strict=True):
                engine.publish(leaves, variables)
        for name, optimizer in self.optimizers.items():
            optimizer.publish(state.slots[name])
        self._note(state)

    def get_state(self, state: TrainState) -> dict:
        """Everything in the state as host arrays: {"online", "target", "slots"} by network."""
        return {
            "online": {name: _to_host(weights) for name, weights in state.online.items()},
            "target": {name: _to_host(weights) for name, weights in state.target.items()},
            "slots": {name: list(map(engine.to_host, s)) for name, s in state.slots.items()},
        }

    def set_state(self, state: TrainState, saved: dict, rates: bool = True) -> TrainState:
        """The state with what `get_state` returned, or with those of its parts that are given.

        Args:
            rates: whether the learning rates are taken over, too.

        Raises:
            CheckpointError: other networks, shapes or slots; nothing has changed then.
        """
        self.check(state, saved)
        online, target, slots = (saved.get(part) for part in ("online", "target", "slots"))
        if online is not None:
            state = state._replace(online=_loaded(state.online, online))
        if target is not None:
            state = state._replace(target=_loaded(state.target, target))
        if slots is not None:
            state = state._replace(
                slots={
                    name: optimizer.load(state.slots[name], slots[name], rates)
                    for name, optimizer in self.optimizers.items()
                }
            )
        return state

    def check(self, state: TrainState, saved: dict) -> None:
        """Raise CheckpointError unless `set_state` can take it."""
        _check_alike("networks", state.online, saved.get("online"))
        _check_alike("target networks", state.target, saved.get("target"))
        _check_alike("optimizer slots", state.slots, saved.get("slots"))

    def take(self, state: TrainState) -> TrainState:
        """The state with the weights of every model that somebody changed since the last look."""
        changed = [name for name in self._variables if not self._as_noted(name)]
        if not changed:
            return state
        fresh = {name: self._adopt(name) for name in changed}
        taken = state._replace(online={**state.online, **fresh})
        self._note(taken if state is self._published else None)
        return taken

    def rates_changed(self) -> bool:
        """Whether somebody set a learning rate on a Keras optimizer; asked before every update.

        Raises:
            ArgumentError: a number gave way to a schedule, or the other way round.
        """
        changed = False
        for name, optimizer in self.optimizers.items():
            if _rate_of(optimizer.keras) is not self._rates[name]:
                raise ArgumentError(
                    f"the {name}'s learning rate became another schedule while it was in use; "
                    "call agent.compile(optimizer) with the new one."
                )
            changed = changed or optimizer.outdated
        return changed

    def refresh(self, state: TrainState) -> TrainState:
        """The state with the learning rates that the Keras optimizers have now."""
        slots = {
            name: optimizer.refresh(state.slots[name])
            for name, optimizer in self.optimizers.items()
        }
        return state._replace(slots=slots)

    def copy_targets(self, state: TrainState) -> TrainState:
        """The state with every target equal to its network."""
        target = {
            name: Weights(*map(engine.overwrite, weights, state.online[name]))
            for name, weights in state.target.items()
        }
        return state._replace(target=target)

    def _adopt(self, name) -> Weights:
        return Weights(*map(engine.adopt, self._variables[name]))

    def _held(self, name) -> list:
        return [variable.value for variables in self._variables[name] for variable in variables]

    def _as_noted(self, name) -> bool:
        return all(a is b for a, b in zip(self._seen[name], self._held(name), strict=True))

    def _note(self, state) -> None:
        self._published = state
        self._seen = {name: self._held(name) for name in self._variables}


def _to_host(weights: Weights) -> dict:
    return {
        "trainable": list(map(engine.to_host, weights.trainable)),
        "non_trainable": list(map(engine.to_host, weights.non_trainable)),
    }


def _loaded(held: dict, saved: dict) -> dict:
    return {
        name: Weights(*(engine.load(getattr(weights, kind), saved[name][kind]) for kind in _KINDS))
        for name, weights in held.items()
    }


def _check_alike(what: str, held: dict, saved: dict | None) -> None:
    """Raise CheckpointError unless both hold arrays of the same shapes under the same names."""
    if saved is None:
        return
    ours, theirs = _shapes(held), _shapes(saved)
    if ours != theirs:
        name = next(n for n in [*theirs, *ours] if ours.get(n) != theirs.get(n))
        raise CheckpointError(
            f"the checkpoint's {what} do not fit this agent: {name} has the shapes "
            f"{theirs.get(name)} there and {ours.get(name)} here. Build the model and compile the "
            "agent as they were then, or let kerasrl_gpu.load(path) build them."
        )


def _shapes(networks: dict) -> dict:
    """{"name/kind": shapes} of networks or of lists of slots."""
    found = {}
    for name, one in networks.items():
        one = one._asdict() if isinstance(one, Weights) else one
        kinds = one if isinstance(one, dict) else {"slots": one}
        for kind, arrays in kinds.items():
            found[f"{name}/{kind}"] = [tuple(np.shape(array)) for array in arrays]
    return found


def _check_apart(models: dict) -> None:
    owners = {}
    for name, model in models.items():
        for variable in model.trainable_variables:
            owner = owners.setdefault(id(variable), name)
            if owner != name:
                raise ArgumentError(
                    f"the {owner} and the {name} share the variable {variable.path}; each has a "
                    "target and an optimizer of its own. Give each its own layers, for instance "
                    "keras.models.clone_model of the shared part."
                )


def _rate_of(optimizer):
    """The learning rate's variable, or the schedule, that compiled calls have traced."""
    return getattr(optimizer, "inner_optimizer", optimizer)._learning_rate


def with_weights(model, weights: Weights):
    """A copy of a Keras model that holds these weights."""
    clone = keras.models.clone_model(model, clone_function=_copied)
    variables = (clone.trainable_variables, clone.non_trainable_variables)
    for leaves, held in zip(weights, variables, strict=True):
        for leaf, variable in zip(leaves, held, strict=True):
            variable.assign(engine.to_host(leaf))
    return clone


def _copied(layer):
    """A layer like this one; a Lambda itself, whose function Keras does not rebuild."""
    if isinstance(layer, keras.layers.Lambda):
        return layer
    return type(layer).from_config(layer.get_config())
