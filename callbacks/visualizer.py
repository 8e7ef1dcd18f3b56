"""Shows the environment while the agent acts."""

import inspect
import warnings

from kerasrl_gpu.callbacks.base import Callback


def choose_render(env):
    """The call that draws `env` as it asks to be drawn, or None where it cannot be.

    An environment that was made with a `render_mode` draws by it. An old one takes the mode as an
    argument of `render`, perhaps behind wrappers that pass any argument on. One that was made
    without a mode is not drawn.
    """
    if getattr(env, "render_mode", None) is not None:
        return env.render
    parameters = inspect.signature(env.render).parameters
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "mode" in parameters or (passes_on and not hasattr(env, "render_mode")):
        return lambda: env.render(mode="human")
    return None if hasattr(env, "render_mode") else env.render


class Visualizer(Callback):
    """Renders the environment after each action (`visualize=True`).

    Gymnasium draws only what was made with a `render_mode`. Without one this warns once, when the
    environment is set, and does nothing.
    """

    _render = None

    def _set_env(self, env):
        super()._set_env(env)
        self._render = choose_render(env)
        if self._render is None:
            spec = getattr(env, "spec", None)
            name = "..." if spec is None else repr(spec.id)
            warnings.warn(
                f"visualize=True, but {env} was made without a render_mode, so nothing is shown. "
                f'Make it with gymnasium.make({name}, render_mode="human"), or pass '
                f"visualize=False.",
                stacklevel=2,
            )

    def on_action_end(self, action, logs=None):
        if self._render is not None:
            self._render()
