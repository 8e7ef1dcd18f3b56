"""The engine: the only code that names a backend. Both engines offer the same names.

State on JAX is arrays that a compiled call consumes and returns; on TensorFlow it is variables
that a compiled call assigns. Either way a caller writes

    state, pool, out = program(state, pool, wire)

and keeps nothing of what it handed in.
"""

import keras

from kerasrl_gpu.errors import BackendError

if keras.backend.backend() == "jax":
    from kerasrl_gpu.engine import jax as _engine
elif keras.backend.backend() == "tensorflow":
    from kerasrl_gpu.engine import tensorflow as _engine
else:
    raise BackendError(
        f"kerasrl_gpu has no engine for the Keras backend {keras.backend.backend()!r}; it runs on "
        "'tensorflow' and 'jax'. Set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax before the "
        "first import of keras."
    )

NAME = _engine.NAME
Optimizer = _engine.Optimizer
adopt = _engine.adopt
bitcast = _engine.bitcast
check_storable = _engine.check_storable
clone = _engine.clone
cluster = _engine.cluster
compile_act = _engine.compile_act
compile_infer = _engine.compile_infer
compile_learn = _engine.compile_learn
compile_put = _engine.compile_put
compile_read = _engine.compile_read
compile_step = _engine.compile_step
counter = _engine.counter
device = _engine.device
device_budget_bytes = _engine.device_budget_bytes
from_bytes = _engine.from_bytes
overwrite = _engine.overwrite
publish = _engine.publish
random_int = _engine.random_int
take_rows = _engine.take_rows
to_bytes = _engine.to_bytes
to_host = _engine.to_host
value_and_grad = _engine.value_and_grad
zeros = _engine.zeros
