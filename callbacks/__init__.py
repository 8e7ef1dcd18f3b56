"""Callbacks that watch a run: keras-rl's own set, rewritten to cost the same however long it lasts.

Names are taken from their modules when they are first asked for.
"""

import importlib

_MODULES = {
    "BatchTuner": "batch_tuner",
    "Callback": "base",
    "CallbackList": "base",
    "FileLogger": "file_logger",
    "History": "history",
    "MemoryGuard": "memory_guard",
    "MemoryTrace": "memory_trace",
    "ModelIntervalCheckpoint": "interval_checkpoint",
    "RunCheckpoint": "run_checkpoint",
    "StepTimes": "step_times",
    "TestLogger": "testlogger",
    "TrainEpisodeLogger": "episode_logger",
    "TrainIntervalLogger": "interval_logger",
    "Visualizer": "visualizer",
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
