"""What every test gets: one backend a process, repeatable Hypothesis, no GPU test without a GPU."""

import os
import signal

# Before anything imports Keras, pygame or TensorFlow's C++ side: each reads its variable once.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
from hypothesis import settings

# A job that a shell starts in the background ignores Ctrl-C, and so would what is tested with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the first example compiles. The same examples every time, so a red test stays red.
settings.register_profile("kerasrl_gpu", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("kerasrl_gpu")


@pytest.fixture(scope="session")
def backend() -> str:
    """Name of the Keras backend that this process tests: "tensorflow" or "jax"."""
    return os.environ["KERAS_BACKEND"]


def sees_gpu() -> bool:
    """Whether the backend of this process has a GPU. Loads the backend."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import tensorflow

    return bool(tensorflow.config.list_physical_devices("GPU"))


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not sees_gpu():
        pytest.skip(f"{os.environ['KERAS_BACKEND']} sees no GPU on this machine")
