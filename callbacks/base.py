"""The base class of our callbacks, and the list through which a loop calls any kind of them."""

import keras

from kerasrl_gpu.callbacks import log_files, states
from kerasrl_gpu.callbacks.keras_view import KerasView
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.keras_rl import Callback as KerasRLCallback


class Callback(KerasRLCallback):
    """A callback of a run: keras-rl's, with `agent`, and without mutable default arguments.

    `self.agent` and `self.model` are the agent, `self.env` the environment, `self.params`
    `{"nb_steps": n}` in `fit` and `{"nb_episodes": n}` in `test`. Called through a `CallbackList`
    a hook always gets a dict as its `logs`. Read `logs["metrics"]` one step late, or at the
    episode's end: the device is still at work on its numbers, and asking sooner waits for them.
    """

    env = None

    @property
    def agent(self):
        return self._model

    def on_episode_begin(self, episode, logs=None):
        """Before the first step of an episode. `episode` counts from 0."""

    def on_episode_end(self, episode, logs=None):
        """After an episode. Logs: episode_reward, nb_episode_steps (not in test), nb_steps."""

    def on_step_begin(self, episode_step, logs=None):
        """Before a step. `episode_step` counts from 0 in every episode."""

    def on_step_end(self, episode_step, logs=None):
        """After a step. Logs: action, observation, reward, metrics (not in test), episode, info."""

    def on_action_begin(self, action, logs=None):
        """Before the environment takes `action`; once for each repetition of it."""

    def on_action_end(self, action, logs=None):
        """After the environment took `action`; once for each repetition of it."""

    def on_wait(self, logs=None):
        """Again and again while a paused run waits; see `Agent.pause`. Logs: none."""


# What a callback without an episode or step hook gets instead, first come first served.
_KERAS_HOOKS = {
    "on_train_begin": (),
    "on_train_end": (),
    "on_episode_begin": ("on_epoch_begin",),
    "on_episode_end": ("on_epoch_end",),
    "on_step_begin": ("on_train_batch_begin", "on_batch_begin"),
    "on_step_end": ("on_train_batch_end", "on_batch_end"),
    "on_action_begin": (),
    "on_action_end": (),
}


def overridden(callback, hook: str):
    """The callback's own method for `hook`; None where it has none or inherits an empty one."""
    method = getattr(callback, hook, None)
    if not callable(method):
        return None
    function = getattr(method, "__func__", method)
    for base in (Callback, KerasRLCallback, keras.callbacks.Callback):
        if function is base.__dict__.get(hook):
            return None
    return method


class CallbackList:
    """Calls keras-rl's, our own and Keras' callbacks at the points of a run, in list order.

    The methods that a hook has to call are collected once, when the list is made and again when
    training begins; a hook that nobody overrides costs a look at an empty tuple, which matters
    for the four that are called at every step.

    A callback without keras-rl's episode or step hooks gets Keras' epoch and batch hooks instead,
    with logs of plain numbers (`KerasView`). All others share one `logs` dict per call.

    Args:
        callbacks: instances, in the order in which they are called; None for none.

    Raises:
        ArgumentError: an entry is a class, or nothing that Keras would take for a callback.
    """

    def __init__(self, callbacks=None):
        self.callbacks = list(callbacks or ())
        self.model = None
        self.params = None
        self._began = {}  # id of a callback -> its plain attributes when the run began
        for index, callback in enumerate(self.callbacks):
            _check_callback(index, callback)
        self._view = KerasView()
        self._collect()

    def get_state(self) -> list:
        """What each callback, and the view that Keras' see, holds of the run; see `states`."""
        held = [
            states.get_state(callback, self._began.get(id(callback), {}))
            for callback in self.callbacks
        ]
        return [*held, {"class": states.VIEW, "state": self._view.get_state(), "files": {}}]

    def cut_back(self, saved: list) -> list[str]:
        """Cut log files back to where `get_state` was called; before the run begins.

        Returns:
            names of callbacks that something was saved of, and that are not in this list.
        """
        for callback, entry in states.pairs(self.callbacks, saved):
            log_files.cut_back(callback, entry["files"])
        return states.unmatched(self.callbacks, saved)

    def set_state(self, saved: list) -> None:
        """Put the callbacks where `get_state` was called; after they began the run."""
        for callback, entry in states.pairs(self.callbacks, saved):
            states.set_state(callback, entry["state"], self._began[id(callback)])
        for entry in saved:
            if entry["class"] == states.VIEW:
                self._view.set_state(entry["state"])

    def append(self, callback) -> None:
        """Add one more callback, to be called after the others."""
        _check_callback(len(self.callbacks), callback)
        self.callbacks.append(callback)
        self._collect()

    def set_model(self, agent) -> None:
        self.model = agent
        for callback in self.callbacks:
            callback.set_model(agent)

    def set_env(self, env) -> None:
        for callback in self.callbacks:
            set_env = getattr(callback, "_set_env", None)
            if callable(set_env):
                set_env(env)

    _set_env = set_env  # keras-rl's name, for loops written against its list

    def set_params(self, params: dict) -> None:
        self.params = params
        for callback in self.callbacks:
            callback.set_params(params)

    def on_train_begin(self, logs=None) -> None:
        self._view.begin(self.model)
        logs = {} if logs is None else logs
        for call in self._train_begin:
            call(logs)
        self._began = {id(callback): states.plain(callback) for callback in self.callbacks}
        self._collect()  # a callback may have chosen its hooks while it began

    def on_train_end(self, logs=None) -> None:
        """Tell every callback that the run is over, also when one of them raises; then raise it."""
        logs = {} if logs is None else logs
        errors = []
        for call in self._train_end:
            try:
                call(logs)
            except BaseException as error:  # also sys.exit() and Ctrl-C: the others hold files open
                errors.append(error)
        if errors:
            raise errors[0]

    def on_episode_begin(self, episode, logs=None) -> None:
        if self._episode_begin:
            logs = {} if logs is None else logs
            for call in self._episode_begin:
                call(episode, logs)

    def on_episode_end(self, episode, logs=None) -> None:
        if self._episode_end:
            logs = {} if logs is None else logs
            for call in self._episode_end:
                call(episode, logs)

    def on_step_begin(self, episode_step, logs=None) -> None:
        if self._step_begin:
            logs = {} if logs is None else logs
            for call in self._step_begin:
                call(episode_step, logs)

    def on_step_end(self, episode_step, logs=None) -> None:
        if self._step_end:
            logs = {} if logs is None else logs
            for call in self._step_end:
                call(episode_step, logs)

    def on_action_begin(self, action, logs=None) -> None:
        if self._action_begin:
            logs = {} if logs is None else logs
            for call in self._action_begin:
                call(action, logs)

    def on_action_end(self, action, logs=None) -> None:
        if self._action_end:
            logs = {} if logs is None else logs
            for call in self._action_end:
                call(action, logs)

    def on_wait(self, logs=None) -> None:
        """Called again and again while a paused run waits; only ours have this hook."""
        for callback in self.callbacks:
            if isinstance(callback, Callback):
                callback.on_wait({} if logs is None else logs)

    def _collect(self) -> None:
        self._keras_listens = False
        self._train_begin = self._calls("on_train_begin")
        self._train_end = self._calls("on_train_end")
        self._episode_begin = self._calls("on_episode_begin")
        self._step_begin = self._calls("on_step_begin")
        self._action_begin = self._calls("on_action_begin")
        self._action_end = self._calls("on_action_end")
        episode_end, step_end = self._calls("on_episode_end"), self._calls("on_step_end")
        if self._keras_listens:  # only then is it worth watching the steps
            episode_end = (self._view.on_episode_end, *episode_end)
            step_end = (self._view.on_step_end, *step_end)
        self._episode_end, self._step_end = episode_end, step_end

    def _calls(self, hook: str) -> tuple:
        calls = []
        for callback in self.callbacks:
            if callable(getattr(callback, hook, None)):
                calls.append(overridden(callback, hook))
            else:
                calls.append(self._keras_call(callback, hook))
        return tuple(call for call in calls if call is not None)

    def _keras_call(self, callback, hook: str):
        """Keras' counterpart of `hook` in `callback`, fed with what Keras' callbacks can use."""
        for name in _KERAS_HOOKS[hook]:
            method = overridden(callback, name)
            if method is None:
                continue
            if hook == "on_episode_end":
                self._keras_listens = True
                return self._view.as_epoch_end(method, callback)
            if hook == "on_step_end":
                self._keras_listens = True
                return self._view.as_batch_end(method)
            return method
        return None


def _check_callback(index: int, callback) -> None:
    if isinstance(callback, type):
        raise ArgumentError(
            f"callbacks[{index}] is the class {callback.__name__}. "
            f"Pass an instance of it: {callback.__name__}(...)."
        )
    if not callable(getattr(callback, "set_model", None)):
        raise ArgumentError(
            f"callbacks[{index}] is {callback!r}, which is no callback. Pass an instance of a "
            f"subclass of kerasrl_gpu.callbacks.Callback or keras.callbacks.Callback."
        )
