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

    An update reads its batch in the same way, inside its own call.
    """
    from kerasrl_gpu import engine

    def once():
        batch = memory.draw_batch(batch_size)
        engine.to_host(batch["reward"])  # 128 bytes; there only once the whole read is done

    return once


def bytes_to_device_per_step(agent):
    """Host-to-device bytes of one step that acts, stores a row and updates.

    ADAPTER: one message a step carries the new row, the stack to act on and the counters.
    """
    return int(agent.memory.wire.buffer.nbytes)


def update_calls(agent, micro_batches, fused, opened):
    """{point: a call of updates that waits for the device and leaves no trace}.

    ADAPTER: what tuning itself times.

    Args:
        opened: a contextlib.ExitStack, which ends them.
    """
    from kerasrl_gpu.tuning.points import Point
    from kerasrl_gpu.tuning.trials import trials

    one = opened.enter_context(trials(agent))
    points = [Point(agent.batch_size, m, k) for m in micro_batches for k in fused]
    return {point: opened.enter_context(one.run(point)) for point in points}
