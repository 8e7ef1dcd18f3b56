"""The rows of `make bench`: which sides run, for how long, and what is aimed at.

A side is a process, not a callable: JAX, TensorFlow, PyTorch and keras-rl2's old stack cannot
share one. So a row lists commands, and the runner takes them in turns.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Side:
    """One command. `environment` names the interpreter: "project", "sb3" or "keras-rl2".

    `one_core` binds the process to one core, where the system can.
    """

    label: str
    environment: str
    script: str
    arguments: tuple[str, ...] = ()
    backend: str = ""
    one_core: bool = False


@dataclass(frozen=True)
class Size:
    """Steps that are not timed, steps in a timed window, and how many windows a process times.

    The warm-up reaches past the step at which learning starts: that one compiles.
    """

    warmup: int
    window: int
    windows: int


@dataclass(frozen=True)
class Ratio:
    """Best of `candidates` against best of `baselines`; `at_least` None means no aim is set."""

    candidates: tuple[str, ...]
    baselines: tuple[str, ...]
    at_least: float | None = None


@dataclass(frozen=True)
class Limit:
    """The median of one side stays at or under `at_most`, or strictly under it."""

    label: str
    at_most: float
    strictly: bool = False


@dataclass(frozen=True)
class Row:
    name: str
    unit: str
    better: str
    size: Size
    quick: Size
    sides: tuple[Side, ...]
    ratios: tuple[Ratio, ...] = ()
    limits: tuple[Limit, ...] = ()
    repeats: int | None = field(default=None)  # None: as many as the command line says


JAX, TF = "ours jax", "ours tensorflow"


def ours(script, *arguments):
    """Both backends of the project, each in a process of its own."""
    return (
        Side(JAX, "project", script, arguments, "jax"),
        Side(TF, "project", script, arguments, "tensorflow"),
    )


# On networks this small waking a second core costs more than it computes: PyTorch falls to a tenth
# as soon as anything else runs on the machine, XLA and TensorFlow lose a sixth. So every side runs
# both ways, and ratios are between the better ones.
def on_one_core(side):
    return replace(side, label=f"{side.label} 1 core", one_core=True)


SB3 = ("sb3", "sb3 1 thread")
SBX, KERAS_RL2 = ("sbx", "sbx 1 core"), ("keras-rl2", "keras-rl2 1 core")
JAX_BOTH, TF_BOTH = (JAX, f"{JAX} 1 core"), (TF, f"{TF} 1 core")


def both_ways(*sides):
    return tuple(one for side in sides for one in (side, on_one_core(side)))


def sb3_train(work):
    default, single = SB3
    return (
        Side(default, "sb3", "peers/sb3_train.py", ("sb3", work)),
        Side(single, "sb3", "peers/sb3_train.py", ("sb3", work, "--threads", "1")),
    )


ONCE = Size(0, 1, 1)  # for figures that are counted, not timed


def checkpoint_row(work, unit, at_most, size=ONCE):
    """A figure of `ours_checkpoint.py`; no peer saves its replay so that it could go on."""
    return Row(
        name=f"checkpoint_{work}",
        unit=unit,
        better="lower",
        size=size,
        quick=replace(size, windows=1),
        sides=ours("ours_checkpoint.py", work),
        limits=(Limit(JAX, at_most), Limit(TF, at_most)),
    )


def tune_row(work, windows=15):
    """The best point of an exhaustive sweep against the one that `agent.tune()` chose."""
    return Row(
        name=f"tune_{work}",
        unit="times the chosen one",
        better="lower",
        size=Size(0, 1, windows),
        quick=Size(0, 1, 2),
        repeats=1,
        sides=ours("ours_tune.py", work),
        limits=(Limit(JAX, 1.053), Limit(TF, 1.053)),  # within 5 %
    )


ROWS = (
    Row(
        name="dqn_cartpole",
        unit="env steps/s",
        better="higher",
        size=Size(1_000, 1_000, 5),
        quick=Size(300, 200, 2),
        sides=(
            *both_ways(*ours("ours_train.py", "dqn_cartpole")),
            *sb3_train("dqn_cartpole"),
            *both_ways(
                Side("sbx", "sb3", "peers/sb3_train.py", ("sbx", "dqn_cartpole")),
                Side("keras-rl2", "keras-rl2", "peers/keras_rl2_train.py"),
            ),
        ),
        ratios=(
            Ratio(JAX_BOTH, SB3, 6.0),
            Ratio(TF_BOTH, SB3, 2.5),
            Ratio(JAX_BOTH, SBX),
            Ratio(TF_BOTH, SBX),
            Ratio(JAX_BOTH, KERAS_RL2, 10.0),
            Ratio(TF_BOTH, KERAS_RL2, 4.0),
        ),
    ),
    Row(
        name="ddpg_pendulum",
        unit="env steps/s",
        better="higher",
        size=Size(500, 300, 5),
        quick=Size(350, 50, 2),
        sides=(
            *ours("ours_train.py", "ddpg_pendulum"),
            *sb3_train("ddpg_pendulum"),
            Side("sbx", "sb3", "peers/sb3_train.py", ("sbx", "ddpg_pendulum")),
        ),
        ratios=(
            Ratio((JAX, TF), (*SB3, "sbx"), 1.2),
            Ratio((JAX,), (*SB3, "sbx")),
            Ratio((TF,), (*SB3, "sbx")),
        ),
    ),
    Row(
        name="nature_dqn_update",
        unit="ms/update",
        better="lower",
        size=Size(80, 20, 5),
        quick=Size(70, 5, 2),
        sides=(
            *ours("ours_train.py", "nature_dqn"),
            Side("sb3", "sb3", "peers/sb3_nature.py"),
        ),
        ratios=(Ratio((TF,), ("sb3",), 1.4), Ratio((JAX,), ("sb3",))),
    ),
    Row(
        name="sample_32_atari",
        unit="ms/read",
        better="lower",
        size=Size(300, 100, 5),  # a pool that was just filled is read slowly at first
        quick=Size(5, 10, 2),
        sides=(
            *ours("ours_pool.py", "sample", "--frames", "{frames}"),
            Side(
                "keras-rl2",
                "keras-rl2",
                "peers/keras_rl2_pool.py",
                ("sample", "--frames", "{frames}"),
            ),
        ),
        ratios=(Ratio((JAX,), ("keras-rl2",)), Ratio((TF,), ("keras-rl2",))),
        limits=(Limit(JAX, 1.0, strictly=True), Limit(TF, 1.0, strictly=True)),
    ),
    Row(
        name="bytes_per_transition_atari",
        unit="B/transition",
        better="lower",
        size=ONCE,
        quick=ONCE,
        repeats=1,
        sides=(
            *ours("ours_pool.py", "atari"),
            Side("sb3", "sb3", "peers/sb3_bytes.py", ("atari",)),
            Side("keras-rl2", "keras-rl2", "peers/keras_rl2_pool.py", ("atari",)),
        ),
        ratios=(Ratio((JAX, TF), ("sb3",)), Ratio((JAX, TF), ("keras-rl2",))),
        limits=(Limit(JAX, 7_070), Limit(TF, 7_070)),
    ),
    Row(
        name="bytes_per_transition_float17",
        unit="B/transition",
        better="lower",
        size=ONCE,
        quick=ONCE,
        repeats=1,
        sides=(
            *ours("ours_pool.py", "float17"),
            Side("sb3", "sb3", "peers/sb3_bytes.py", ("float17",)),
            Side("keras-rl2", "keras-rl2", "peers/keras_rl2_pool.py", ("float17",)),
        ),
        ratios=(Ratio((JAX, TF), ("sb3",)), Ratio((JAX, TF), ("keras-rl2",))),
        limits=(Limit(JAX, 105), Limit(TF, 105)),
    ),
    Row(
        name="bytes_to_device_atari",
        unit="B/step",
        better="lower",
        size=Size(70, 5, 1),
        quick=Size(70, 5, 1),
        repeats=1,
        sides=(
            *ours("ours_train.py", "nature_dqn", "--figure", "bytes_to_device"),
            # Arithmetic only, so it needs no environment of its own.
            Side("keras-rl2", "project", "peers/keras_rl2_traffic.py"),
        ),
        ratios=(Ratio((JAX,), ("keras-rl2",), 50.0), Ratio((TF,), ("keras-rl2",), 50.0)),
    ),
    tune_row("mlp_64_64"),
    tune_row("mlp_256_256"),
    tune_row("nature_cnn", windows=9),
    Row(
        name="tune_seconds",
        unit="s",
        better="lower",
        size=ONCE,
        quick=ONCE,
        repeats=1,
        sides=ours("ours_tune.py", "mlp_256_256", "--figure", "seconds"),
        limits=(Limit(JAX, 60), Limit(TF, 60)),
    ),
    checkpoint_row("incremental", "of a full save", 0.25, Size(0, 1, 5)),
    checkpoint_row("memory", "MiB more", 64),
    checkpoint_row("size", "of a full one", 0.21),
    checkpoint_row("steps", "of the step rate", 0.05, Size(1_000, 10_000, 4)),
)
