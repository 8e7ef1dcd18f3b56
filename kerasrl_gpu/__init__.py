"""Keras-RL, memory-managed: the agents of keras-rl on Keras 3, with replay on the device.

Importing the package loads no backend and changes nothing. Taking a name from it does:

    from kerasrl_gpu import DQNAgent, DDPGAgent, DeviceMemory
"""

import importlib

__version__ = "0.1.0"

_MODULES = {
    "DDPGAgent": "agents.ddpg",
    "DQNAgent": "agents.dqn",
    "DeviceMemory": "memory",
    "Player": "resume.player",
    "load": "resume.rebuilding",
    "set_memory_growth": "growth",
}

__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_MODULES})
