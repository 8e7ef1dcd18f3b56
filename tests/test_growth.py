"""Memory growth: set early it holds, set late it says so."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import kerasrl_gpu
from kerasrl_gpu import engine
from kerasrl_gpu.errors import DeviceInUse

VARIABLES = ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    """Nothing is asked for, and what a test sets does not stay."""
    for variable in (*VARIABLES, "XLA_PYTHON_CLIENT_ALLOCATOR"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


class Gpus:
    """Two GPUs as TensorFlow's configuration shows them."""

    def __init__(self, started=False, limited=()):
        self.started, self.limited = started, limited
        self.grows = {"gpu 0": False, "gpu 1": False}

    def set_memory_growth(self, gpu, enable):
        """With TensorFlow's own checks, in its order."""
        if gpu in self.limited:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        if self.grows[gpu] != enable and self.started:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.grows[gpu] = enable

    def install(self, monkeypatch):
        from kerasrl_gpu.engine.tensorflow import growth

        config = SimpleNamespace(
            list_physical_devices=lambda kind: list(self.grows) if kind == "GPU" else [],
            experimental=SimpleNamespace(
                set_memory_growth=self.set_memory_growth, get_memory_growth=self.grows.get
            ),
        )
        monkeypatch.setattr(growth, "tf", SimpleNamespace(config=config))
        return self


@pytest.fixture
def gpus(monkeypatch, backend):
    """A function that makes GPUs, started or not, for either backend."""

    def make(started):
        if backend == "tensorflow":
            return Gpus(started).install(monkeypatch)
        from kerasrl_gpu.engine.jax import growth

        monkeypatch.setattr(growth.xla_bridge, "backends_are_initialized", lambda: started)
        devices = [SimpleNamespace(platform="gpu")]
        monkeypatch.setattr(growth.jax, "local_devices", lambda: devices)
        return None

    return make


def test_set_early_it_is_set_for_every_gpu_and_for_children(gpus, backend):
    made = gpus(started=False)
    assert not engine.memory_growth()
    assert kerasrl_gpu.set_memory_growth() is None
    assert engine.memory_growth()
    if backend == "tensorflow":
        assert made.grows == {"gpu 0": True, "gpu 1": True}
        assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    else:
        assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_set_late_it_says_what_to_do_however_often(gpus):
    gpus(started=True)
    for _ in range(2):
        with pytest.raises(DeviceInUse, match=r"right behind the imports, or start the program w"):
            kerasrl_gpu.set_memory_growth()
        assert not engine.memory_growth()


def test_set_twice_it_is_never_too_late(gpus, monkeypatch, backend):
    made = gpus(started=False)
    kerasrl_gpu.set_memory_growth()
    if made is not None:
        made.started = True
    else:
        gpus(started=True)
    kerasrl_gpu.set_memory_growth()
    assert engine.memory_growth()


@pytest.mark.parametrize("value", ["true", "false", "0", "1", "TRUE", "False", "", "no"])
def test_the_variables_count_as_the_frameworks_read_them(monkeypatch, gpus, backend, value):
    gpus(started=False)
    monkeypatch.setenv(VARIABLES[backend == "jax"], value)
    on = {"tensorflow": ("true", "TRUE"), "jax": ("false", "False", "0")}[backend]
    assert engine.memory_growth() == (value in on)


def test_a_variable_that_forbids_growth_gives_way(monkeypatch, gpus, backend):
    gpus(started=False)
    monkeypatch.setenv(VARIABLES[backend == "jax"], {"tensorflow": "false", "jax": "true"}[backend])
    kerasrl_gpu.set_memory_growth()
    assert engine.memory_growth()


def test_gpus_with_limits_of_their_own_grow_up_to_them(monkeypatch, backend):
    if backend != "tensorflow":
        pytest.skip("logical devices are TensorFlow's")
    made = Gpus(limited=("gpu 0",)).install(monkeypatch)
    kerasrl_gpu.set_memory_growth()
    assert made.grows == {"gpu 0": False, "gpu 1": True}
    assert engine.memory_growth()


def test_jax_without_a_pool_of_memory_keeps_nothing(monkeypatch, backend):
    if backend != "jax":
        pytest.skip("the allocator is JAX's")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    assert engine.memory_growth()


@pytest.mark.skipif("not engine.on_cpu()")
def test_without_a_gpu_it_is_never_too_late():
    engine.device()  # starts what there is
    kerasrl_gpu.set_memory_growth()


def test_the_call_starts_no_device(backend):
    code = (
        "import kerasrl_gpu\n"
        "kerasrl_gpu.set_memory_growth()\n"
        "from kerasrl_gpu import engine\n"
        "if engine.NAME == 'jax':\n"
        "    from jax._src import xla_bridge\n"
        "    print(xla_bridge.backends_are_initialized())\n"
        "else:\n"
        "    from tensorflow.python.eager import context\n"
        "    print(context.context()._initialized)\n"
        "engine.device()\n"
        "kerasrl_gpu.set_memory_growth()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.gpu
@pytest.mark.parametrize("early", [True, False])
def test_on_a_gpu(early):
    code = (
        "import kerasrl_gpu\n"
        "from kerasrl_gpu import engine\n"
        "from kerasrl_gpu.probes import nvml\n"
        "before = nvml.Card()()\n"
        f"if {early}: kerasrl_gpu.set_memory_growth()\n"
        "engine.device(), engine.zeros((1,), 'float32')\n"
        "after = nvml.Card()()\n"
        "print(after.used_bytes - before.used_bytes, after.limit_bytes - before.used_bytes)\n"
        "try:\n"
        "    kerasrl_gpu.set_memory_growth()\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    taken, free, *error = done.stdout.split()
    assert (int(taken) < 0.2 * int(free)) == early
    assert error == ([] if early else ["DeviceInUse"])
