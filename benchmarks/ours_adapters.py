"""The only place where the benchmarks reach past the public names of kerasrl_gpu.

ADAPTER marks each such point: when an entry of the package moves, it is changed here.
"""


def versions():
    """{library: version}, the backend first, and the device that it computes on, in words."""
    import keras

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        device = jax.devices()[0]
        kind = "cpu" if device.platform == "cpu" else device.device_kind
        found = {"jax": jax.__version__}
    else:
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        kind = details.get("device_name", "gpu") if gpus else "cpu"
        found = {"tensorflow": tf.__version__}
    return {**found, "keras": keras.__version__}, kind


def batch_reader(memory, batch_size):
    """A function that draws and reads one batch on the device, and waits until it is there.

    ADAPTER: the memory's own compiled read, which `read_batch` calls too before it copies the
    batch to the host. An update reads its batch in the same way and leaves it on the device.
    """
    import numpy as np

    from kerasrl_gpu import engine
    from kerasrl_gpu.pool.transitions import Rule

    memory.check_can_sample()
    read, live = memory._reader(Rule()), memory.ring.live()
    anywhere, draws = np.full(batch_size, -1, np.int32), iter(range(2**31))

    def once():
        batch = read(
            memory.columns, live.tail, live.size, np.uint32(0), np.uint32(next(draws)), anywhere
        )
        engine.to_host(batch["reward"])  # 128 bytes; there only once the whole read is done

    return once


def bytes_to_device_per_step(agent):
    """Host-to-device bytes of one step that acts, stores a row and updates.

    ADAPTER: one message a step carries the new row, the stack to act on and the counters.
    """
    return int(agent.memory.wire.buffer.nbytes)
