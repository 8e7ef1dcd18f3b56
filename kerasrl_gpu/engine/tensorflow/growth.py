"""Whether TensorFlow takes a GPU's memory as it needs it, or all of it at the start."""

from __future__ import annotations

import os

import tensorflow as tf

from kerasrl_gpu.errors import DeviceInUse

VARIABLE = "TF_FORCE_GPU_ALLOW_GROWTH"  # outdoes what a program sets


def memory_growth() -> bool:
    """Whether growth is set, for every GPU that is there; starts no device."""
    forced = os.environ.get(VARIABLE, "").lower()
    if forced in ("true", "false"):
        return forced == "true"
    gpus = tf.config.list_physical_devices("GPU")
    return bool(gpus) and all(tf.config.experimental.get_memory_growth(gpu) for gpu in gpus)


def set_memory_growth() -> None:
    """Set growth for every GPU, and for the processes that this one starts.

    Raises:
        DeviceInUse: the GPUs have been started without it.
    """
    if memory_growth():
        return
    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (
            ValueError
        ):  # it has a limit of the user's own, up to which the variable lets it grow
            continue
        except RuntimeError:
            raise DeviceInUse(
                "TensorFlow has started its GPUs already and holds all their memory, which it "
                "gives back when the process ends. Call kerasrl_gpu.set_memory_growth() right "
                f"behind the imports, or start the program with {VARIABLE}=true."
            ) from None
    os.environ[VARIABLE] = "true"
