"""Playing from a checkpoint: the network that acts, its processor and its window; no pool."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from keras import tree

from kerasrl_gpu import checkpoint, engine, host
from kerasrl_gpu.errors import ObservationError
from kerasrl_gpu.inputs import Inputs
from kerasrl_gpu.names import class_name, same_class
from kerasrl_gpu.observations import ObservationSpec
from kerasrl_gpu.resume import architecture, parts
from kerasrl_gpu.state import Network, TrainState, Weights


class Player:
    """Acts as the agent of a checkpoint would in `test`; reads neither its pool nor its optimizer.

        player = Player("runs/cartpole")
        action = player.act(observation)

    May be shared by threads: each thread plays an episode of its own.

    Args:
        path: a run directory (its newest checkpoint counts) or one checkpoint.
        model: the network that acts, as `agent.model` or `agent.actor` was, where Keras cannot
            rebuild it; gets the weights.
        processor: where it is of a class of your own; gets what the saved one of its class held.
        policy: a keras-rl policy to choose among Q-values; None is greedy.

    Raises:
        CheckpointError: there is none, it is damaged, or something has to be passed in.
    """

    def __init__(self, path, *, model=None, processor=None, policy=None):
        saved = checkpoint.open_newest(path)
        self._acting, self._policy = saved.state_part("acting"), policy
        name = self._acting["network"]
        if model is None:
            described = saved.manifest["networks"][name]
            model = architecture.rebuild(described, f"the network {name!r}", "model=")
        architecture.set_weights(model, saved.state_part("trainer", "online", name))
        held = saved.state_part("parts", "processor")
        if processor is None:
            processor = parts.rebuild("processor", held)
        elif held is not None and same_class(held["class"], class_name(processor)):
            parts.set_state(processor, held)
        if hasattr(processor, "training"):
            processor.training = False
        self._model, self._processor = model, processor
        self._window = self._acting["window_length"]
        probe = saved.state_part("probe")
        self._spec = None if probe is None else ObservationSpec(probe["state"][-1])
        self._program = None
        self._state = TrainState({name: _weights(model)}, {}, {})
        self._lock, self._episode = threading.Lock(), threading.local()

    def reset(self) -> None:
        """Begin a new episode in this thread: forget the observations before."""
        self._seen().clear()

    def act(self, observation):
        """What to do: an int, or f32[A]; through the processor where there is one.

        Args:
            observation: as the environment shows it.

        Raises:
            ObservationError: of another shape than in training, None or NaN.
        """
        with self._lock:
            if self._processor is not None:
                observation = self._processor.process_observation(observation)
            if self._spec is None:
                self._spec = ObservationSpec(observation)
            self._spec.leaves(observation)
            action = self._choose(self._values(self._stacked(observation)))
            return action if self._processor is None else self._processor.process_action(action)

    def _seen(self) -> deque:
        if not hasattr(self._episode, "seen"):
            self._episode.seen = deque(maxlen=self._window)
        return self._episode.seen

    def _stacked(self, observation) -> list:
        seen = self._seen()
        seen.append(tree.map_structure(np.array, observation))  # the caller may write into it
        zero = tree.map_structure(np.zeros_like, seen[-1])
        return [zero] * (self._window - len(seen)) + list(seen)

    def _values(self, state) -> np.ndarray:
        """What the network says to k observations, f32[A]."""
        batch = host.stack([state], self._spec, self._processor)
        if self._processor is not None:
            batch = self._processor.process_state_batch(batch)
        batch = host.narrow(batch)
        if self._program is None:
            net = Network(self._model, Inputs(self._model, batch, self._window))
            name = self._acting["network"]
            self._program = engine.compile_infer(
                lambda state, seen: net(state.online[name], seen, training=False)[0]
            )
        return engine.to_host(self._program(self._state, batch))[0]

    def _choose(self, values):
        if not np.isfinite(values).all():
            raise ObservationError(
                f"the network answers {values}. Check the observation, which may be far from those "
                "of training, or play from an older checkpoint."
            )
        if self._acting["discrete"]:
            if self._policy is not None:
                return int(self._policy.select_action(q_values=values))
            return int(values.argmax())
        low, high = self._acting["low"], self._acting["high"]
        return values if low is None else np.clip(values, low, high)


def _weights(model) -> Weights:
    kinds = (model.trainable_variables, model.non_trainable_variables)
    return Weights(*map(engine.adopt, kinds))
