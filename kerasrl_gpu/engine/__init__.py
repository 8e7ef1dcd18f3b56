"""The engine: the only code that names a backend. Both engines offer the same names.

State on JAX is arrays that a compiled call consumes and returns; on TensorFlow it is variables
that a compiled call assigns. Either way a caller writes

    state, pool, out = program(state, pool, wire)

and keeps nothing of what it handed in. Between two steps a state may be packed; `unpack` gives the
TrainState.
"""

import keras

from kerasrl_gpu.errors import BackendError

NAME = keras.backend.backend()

if NAME == "jax":
    from kerasrl_gpu.engine.jax import arrays, growth, packing, programs, serializing, variables
elif NAME == "tensorflow":
    from kerasrl_gpu.engine.tensorflow import (
        arrays,
        growth,
        packing,
        programs,
        serializing,
        variables,
    )
else:
    raise BackendError(
        f"kerasrl_gpu has no engine for the Keras backend {NAME!r}; it runs on "
        "'tensorflow' and 'jax'. Set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax before the "
        "first import of keras."
    )

Optimizer = variables.Optimizer
adopt = variables.adopt
borrowed = variables.borrowed
clone = variables.clone
load = variables.load
overwrite = variables.overwrite
publish = variables.publish
value_and_grad = variables.value_and_grad

bitcast = arrays.bitcast
check_storable = arrays.check_storable
counter = arrays.counter
device = arrays.device
device_memory = arrays.device_memory
devices = arrays.devices
from_bytes = arrays.from_bytes
is_exhausted = arrays.is_exhausted
leaves = arrays.leaves
on_cpu = arrays.on_cpu
random_int = arrays.random_int
take_byte = arrays.take_byte
take_rows = arrays.take_rows
to_bytes = arrays.to_bytes
to_host = arrays.to_host
zeros = arrays.zeros

memory_growth = growth.memory_growth
set_memory_growth = growth.set_memory_growth

HOLDS_POOL = programs.HOLDS_POOL  # whether a compiled call is one of a certain pool

cluster = programs.cluster
compile_act = programs.compile_act
compile_fill = programs.compile_fill
compile_infer = programs.compile_infer
compile_learn = programs.compile_learn
compile_put = programs.compile_put
compile_read = programs.compile_read
compile_step = programs.compile_step
fence = programs.fence
repeat = programs.repeat
survived = programs.survived

serializing = serializing.serializing
unpack = packing.unpack
