"""How the engines compute: what each keeps for the backward pass, and what it makes on the way.

These are measurements, not promises of the libraries. Each is bytes a row of a batch: the rise of a
process' resident memory (and on JAX the compiler's own account) between two batch sizes, for dense
networks of 64 to 1,024 units and the Nature CNN, on CPUs with AVX-512; TensorFlow 2.21, JAX 0.10.2.
`tests/test_planning_measured.py` measures again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kerasrl_gpu import engine


@dataclass(frozen=True)
class Engine:
    """How one way to compile computes.

    Attributes:
        activations: name -> arrays of a layer's size kept beside its output; others keep 2.
        norms: class name -> arrays that a normalisation keeps beside its output; others keep 1.
        recurrent: class name -> arrays of the layer's units that each time step keeps.
        fuses: casts, scalings and permutations are written once, for the layer that reads them.
        infers: what a pass without gradients holds: all its outputs ("all"), the largest one
            ("largest"), or the largest input with its output ("pair").
        infers_together: passes without gradients run at the same time.
        relu_zeros: each width of a relu has an array of zeros of that size.
        unfolds: a convolution writes out every patch that it reads.
        overlaps: what one optimizer's networks keep lies beside what the next one's keep.
        half_bytes: dtype -> bytes a number; more than 2 where it is kept in float32, or in both.
        reads_ahead: the next observations are there as long as the observations.
        reads_at_once: a batch that is computed in parts is read whole; else a part and the next.
        draw_bytes: of a row of the whole batch, while its parts are computed.
        copies: Keras' variables are a second copy of weights and slots.
        assigns: the optimizer's new slots lie beside the old ones.
        code_bytes: what compilers, compiled calls and their threads take on the host.
    """

    activations: dict = field(default_factory=dict)
    norms: dict = field(default_factory=dict)
    recurrent: dict = field(default_factory=dict)
    fuses: bool = True
    infers: str = "pair"
    infers_together: bool = False
    relu_zeros: bool = False
    unfolds: bool = False
    overlaps: bool = False
    half_bytes: dict = field(default_factory=lambda: {"float16": 2, "bfloat16": 2})
    reads_ahead: bool = False
    reads_at_once: bool = False
    draw_bytes: int = 96
    copies: bool = False
    assigns: bool = False
    code_bytes: int = 0


# XLA keeps what a relu is applied to, not only its result; JAX differentiates elu, swish and gelu
# operation by operation. Relu, 256-256: 5.3 KiB a row by JAX's own account, tanh 3.1, elu 7.3,
# gelu 11.3; with normalisation by batch 7.3, by layer 13.4.
_JAX = Engine(
    activations={"tanh": 0, "sigmoid": 0, "relu": 1, "elu": 2, "silu": 2, "gelu": 4},
    norms={"BatchNormalization": 1, "LayerNormalization": 4},
    recurrent={"LSTM": 17, "GRU": 25, "SimpleRNN": 4},
    overlaps=True,
    reads_ahead=True,
    draw_bytes=48,
    copies=True,
)

# Relu, 256-256: 7.3 KiB a row: 2 of them inside the kernel that is made of the target's layers.
JAX_CPU = replace(
    _JAX,
    infers="all",
    relu_zeros=True,
    half_bytes={"float16": 3.5, "bfloat16": 3.5},
    code_bytes=128 * 2**20,
)
# Nature CNN: 877 kB a row, of which the patches of its first layer are 410.
JAX_CPU_CONVOLUTIONAL = replace(
    _JAX,
    unfolds=True,
    reads_at_once=True,
    half_bytes={"float16": 3.7, "bfloat16": 3.7},
    code_bytes=272 * 2**20,
)

_TENSORFLOW_RECURRENT = {"LSTM": 13, "GRU": 10, "SimpleRNN": 3}

# Relu, 256-256: 5.7 KiB a row, 7.7 and 9.6 with one and two layers more; tanh 4.4, gelu 9.8; with
# normalisation by batch 5.7, by layer 6.8.
TENSORFLOW_XLA = Engine(
    activations={"tanh": 0, "sigmoid": 0, "relu": 1, "elu": 0, "silu": 1, "gelu": 3},
    norms={"BatchNormalization": 0, "LayerNormalization": 1},
    recurrent=_TENSORFLOW_RECURRENT,
    infers="largest",
    infers_together=True,
    overlaps=True,
    half_bytes={"float16": 4.4, "bfloat16": 3.6},
    assigns=True,
    code_bytes=184 * 2**20,
)
# Nature CNN: 441 kB a row. Relu, elu and their like are differentiated by their results.
TENSORFLOW_KERNELS = Engine(
    activations={"tanh": 0, "sigmoid": 0, "relu": 0, "elu": 0, "silu": 1, "gelu": 3},
    norms={"BatchNormalization": 1, "LayerNormalization": 2},
    recurrent=_TENSORFLOW_RECURRENT,
    fuses=False,
    assigns=True,
    half_bytes={"float16": 3.1, "bfloat16": 2.2},
    code_bytes=144 * 2**20,
)


def compiled_by(convolutional: bool) -> Engine:
    """How the running engine compiles an update.

    Args:
        convolutional: whether a network convolves.
    """
    if (
        not engine.on_cpu()
    ):  # taken over from XLA on CPUs; compiling takes host memory, not the device's
        return _JAX if engine.NAME == "jax" else replace(TENSORFLOW_XLA, code_bytes=0)
    if engine.NAME == "jax":
        return JAX_CPU_CONVOLUTIONAL if convolutional else JAX_CPU
    return TENSORFLOW_KERNELS if convolutional else TENSORFLOW_XLA
