"""Processors written for NumPy run inside compiled functions, or say why they cannot."""

import random

import keras
import numpy as np
import pytest
from keras import ops

from kerasrl_gpu import tracing
from kerasrl_gpu.keras_rl import Processor, rl_processors
from kerasrl_gpu.processors import MultiInputProcessor, WhiteningNormalizerProcessor
from kerasrl_gpu.traced_array import NotTraceable, TracedArray

FRAMES = np.random.default_rng(0).integers(0, 256, (3, 2, 4, 5), dtype="uint8")
FLOATS = np.random.default_rng(1).normal(size=(3, 2, 6)).astype("float32")


def compilers():
    if keras.backend.backend() == "jax":
        import jax

        return {"jit": jax.jit}
    import tensorflow as tf

    return {"graph": tf.function, "xla": lambda function: tf.function(function, jit_compile=True)}


def processor_of(function):
    """A processor whose process_state_batch is `function(batch)`."""
    method = {"process_state_batch": lambda self, batch: function(batch)}
    return type("Mine", (Processor,), method)()


class Scaled(Processor):
    def process_state_batch(self, batch):
        return batch.astype("float32") / 255.0


class FramesLast(Processor):
    """Calls keras-rl users write: window to the back, values into a range."""

    def __init__(self, low, high):
        self.low, self.high = low, high

    def process_state_batch(self, batch):
        moved = np.transpose(batch, (0, 2, 3, 1)).astype(np.float64)
        return np.clip((moved - 100) / np.float64(50), self.low, self.high)


class TwoInputs(Processor):
    def process_state_batch(self, batch):
        return [batch[:, -1], np.mean(batch, axis=1)]


class Named(Processor):
    def process_state_batch(self, batch):
        return {"now": batch[:, -1], "change": (batch[:, 1] - batch[:, 0],)}


@pytest.mark.parametrize("how", compilers())
@pytest.mark.parametrize(
    "processor, example",
    [
        (Scaled(), FRAMES),
        (FramesLast(-1, 1.5), FRAMES),
        (TwoInputs(), FLOATS),
        (Named(), FLOATS),
        (MultiInputProcessor(6), FLOATS),
    ],
)
def test_compiled_result_is_the_hosts(how, processor, example):
    function, reason = tracing.trace_state_batch(processor, example)
    assert reason is None
    batch = np.concatenate([example, example])[1:]  # another batch size than the trial's
    came = compilers()[how](function)(ops.convert_to_tensor(batch))
    expected = processor.process_state_batch(batch)
    keras.tree.assert_same_structure(came, expected)
    for ours, theirs in zip(keras.tree.flatten(came), keras.tree.flatten(expected)):
        ours = ops.convert_to_numpy(ours)
        assert ours.dtype == tracing.device_dtype(theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_scaling_by_hand():
    function, _ = tracing.trace_state_batch(Scaled(), FRAMES)
    # 255 -> 1, 51 -> 0.2, 0 -> 0
    came = ops.convert_to_numpy(function(ops.convert_to_tensor(np.uint8([[[255, 51, 0]]]))))
    np.testing.assert_allclose(came, [[[1.0, 0.2, 0.0]]], rtol=1e-6)
    assert came.dtype == np.float32


@pytest.mark.parametrize("processor", [None, Processor()])
def test_a_processor_that_leaves_the_batch_alone_is_the_identity(processor):
    function, reason = tracing.trace_state_batch(processor, FLOATS)
    batch = object()
    assert reason is None
    assert function(batch) is batch


@pytest.mark.parametrize(
    "function, example",
    [
        (lambda b: b.astype("float32").reshape(b.shape[0], -1) * 2 - 1, FRAMES),
        (lambda b: b.astype("float32").reshape((len(b), -1)), FRAMES),
        (lambda b: np.reshape(b, (b.shape[0], 2, -1))[..., ::-1], FRAMES),
        (lambda b: np.squeeze(b[:, -1:], axis=1), FRAMES),
        (lambda b: b[:, :, None].squeeze(2).swapaxes(1, 2).copy(), FRAMES),
        (lambda b: np.moveaxis(b, 1, -1).transpose(), FRAMES),
        (lambda b: np.expand_dims(b, -1).T, FRAMES),
        (lambda b: b[..., [0, -1]], FLOATS),
        (lambda b: b[:, :, np.array([5, 1, 1])], FLOATS),
        (lambda b: b[..., np.array([True, False, True, False, False, True])], FLOATS),
        (lambda b: b.mean(axis=1) + b.sum(1) - b.max(axis=1) * b.min(axis=1), FLOATS),
        (
            lambda b: (b - b.mean(axis=-1, keepdims=True)) / np.std(b, axis=-1, keepdims=True),
            FLOATS,
        ),
        (lambda b: np.concatenate([b, np.abs(b)], axis=-1), FLOATS),
        (lambda b: np.stack([np.sqrt(b * b + 1), np.exp(b), np.log(b**2 + 1)]), FLOATS),
        (lambda b: np.where(b > 0, b, 0.1 * b).clip(-1, 1), FLOATS),
        (lambda b: b.clip(min=0) + np.clip(b, None, 0.5), FLOATS),
        (lambda b: 1 / (1 + np.exp(-b)) ** 2, FLOATS),
        (lambda b: np.float64(3) * b - np.arange(6.0), FLOATS),
        (lambda b: np.arange(6.0) - b, FLOATS),
        (lambda b: (b != 0) & (np.tanh(b) < 0.5), FLOATS),
        (lambda b: np.sum(b, axis=(1, 2), dtype=np.float64, keepdims=True), FRAMES),
        (lambda b: b % 7 + b // 2, FRAMES),
        (lambda b: b * 2 + 200, FRAMES),  # wraps at 256
        (lambda b: np.sqrt(b), FRAMES),  # NumPy gives float16
        (lambda b: ~(b > 100) | (b == 7) ^ True, FRAMES),
        (lambda b: ~b & 15 | 1, FRAMES),
        (lambda b: -b.flatten().reshape(b.shape), FLOATS),
        (lambda b: np.ravel(b), FLOATS),
        (lambda b: np.stack([frame.max() - frame for frame in b]), FLOATS),
        (lambda b: np.pad(b, ((0, 0), (0, 0), (1, 2)))[:, 0], FLOATS),
        (lambda b: b.astype(int) + np.zeros_like(b, dtype="int64"), FRAMES),
        (lambda b: b @ np.ones((6, 2)), FLOATS),
        (lambda b: np.ones((len(b), 3), "float32"), FLOATS),
        (lambda b: b, FLOATS.astype("float64")),
    ],
)
def test_numpy_code_traces(function, example):
    traced, reason = tracing.trace_state_batch(processor_of(function), example)
    assert reason is None
    compiled = list(compilers().values())[-1]
    came = compiled(traced)(ops.convert_to_tensor(example.astype(device_type(example))))
    np.testing.assert_allclose(came, function(example), rtol=1e-5, atol=1e-5)


def device_type(example):
    return "float32" if example.dtype == np.float64 else example.dtype


def test_in_place_arithmetic_traces():
    def function(batch):
        batch = batch.astype("float32")
        batch /= 255.0
        batch -= 0.5
        return batch

    traced, reason = tracing.trace_state_batch(processor_of(function), FRAMES)
    assert reason is None
    came = ops.convert_to_numpy(traced(ops.convert_to_tensor(FRAMES)))
    np.testing.assert_allclose(came, FRAMES / 255 - 0.5, atol=1e-6)


class Counts(Processor):
    def __init__(self):
        self.calls = 0

    def process_state_batch(self, batch):
        self.calls += 1
        return batch * 1.0


class Remembers(Processor):
    """Its side effect shows in no assignment, only in the list."""

    def __init__(self):
        self.shapes = []

    def process_state_batch(self, batch):
        self.shapes.append(batch.shape)
        return batch * 1.0


class OwnNoise(Processor):
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def process_state_batch(self, batch):
        self.generator.random()
        return batch * 1.0


class RunningMean(Processor):
    """Its mean would be frozen at the value of the trace."""

    def __init__(self):
        self.mean = 0.0

    def process_observation(self, observation):
        self.mean = 0.9 * self.mean + 0.1 * np.mean(observation)
        return observation

    def process_state_batch(self, batch):
        return self._centred(batch)

    def _centred(self, batch):
        return batch - self.mean


class RunningArray(RunningMean):
    def __init__(self):
        self.mean = np.zeros(6, "float32")

    def process_observation(self, observation):
        np.maximum(self.mean, observation, out=self.mean)
        return observation


class NoisyInTraining(Processor):
    training = True

    def process_state_batch(self, batch):
        return batch + 1 if self.training else batch


class CountsForAll(Processor):
    calls = 0

    def process_state_batch(self, batch):
        CountsForAll.calls += 1
        return batch * 1.0


def branches(batch):
    return batch / 255.0 if batch.max() > 1 else batch


def assigns(batch):
    batch[:, 0] = 0
    return batch


def numpy_noise(batch):
    np.random.uniform()  # noqa: NPY002 - what a user's processor may do
    return batch * 1.0


def python_noise(batch):
    random.random()
    return batch * 1.0


whitening = WhiteningNormalizerProcessor()
whitening.process_observation(FLOATS[0, 0])


@pytest.mark.parametrize(
    "processor, reason",
    [
        (Counts(), "assigns to an attribute"),
        (CountsForAll(), "assigns to an attribute"),
        (Remembers(), "changes the attribute 'shapes'"),
        (OwnNoise(), "changes the attribute 'generator'"),
        (RunningMean(), "'mean', which process_observation may change"),
        (RunningArray(), "'mean', which process_observation may change"),
        (NoisyInTraining(), "training from testing"),
        (whitening, "'normalizer', which process_observation may change"),
        (type("Sub", (WhiteningNormalizerProcessor,), {})(), "'normalizer'"),
        (rl_processors.WhiteningNormalizerProcessor(), "assigns to an attribute"),
        (processor_of(numpy_noise), "NumPy's global generator"),
        (processor_of(python_noise), "Python's global generator"),
        (processor_of(branches), "a branch"),
        (processor_of(assigns), "assigns into the batch"),
        (processor_of(np.array), "a plain array"),
        (processor_of(lambda b: b.tolist()), "no attribute 'tolist'"),
        (processor_of(lambda b: b[b > 0]), "indexes the batch with values"),
        (processor_of(lambda b: np.nonzero(b)[0]), "depends on values"),
        (processor_of(lambda b: np.where(b)[0]), "depends on values"),
        (processor_of(lambda b: b.reshape(len(b), -1, order="F")), "order 'F'"),
        (processor_of(lambda b: np.add.reduce(b)), "np.add.reduce is not known"),
        (processor_of(lambda b: np.gradient(b)), "np.gradient is not known"),
        (processor_of(lambda b: np.std(b, ddof=1)), "on the device"),
        (processor_of(lambda b: [str(len(b))]), "returns str"),
        (processor_of(lambda b: b.no_such()), "raised AttributeError"),
        (processor_of(lambda b: 1 / 0), "raised ZeroDivisionError: division by zero on stored"),
        (processor_of(lambda b: b.copy() if isinstance(b, np.ndarray) else 2 * b), "different"),
        (processor_of(lambda b: b + (type(b) is np.ndarray) * 1e-4), "different results"),
    ],
)
def test_what_cannot_be_traced_says_why(processor, reason):
    before = dict(vars(processor))
    function, said = tracing.trace_state_batch(processor, FLOATS)
    assert function is None
    assert reason in said
    assert said.startswith(f"{type(processor).__name__}.process_state_batch stays on the host: ")
    assert vars(processor) == before


def test_a_loop_over_the_batch_is_refused_and_one_over_the_window_is_not():
    per_state = processor_of(lambda b: np.stack([state.sum() for state in b]))
    many = np.zeros((17, 2), "float32")
    assert "loops in Python over 17 rows" in tracing.trace_state_batch(per_state, many)[1]
    per_frame = processor_of(lambda b: np.stack([b[:, i] for i in range(b.shape[1])], axis=-1))
    assert tracing.trace_state_batch(per_frame, many)[1] is None


def test_a_processor_that_cannot_be_copied_is_refused():
    processor = processor_of(lambda b: b * 1.0)
    processor.lines = (line for line in ())
    assert "cannot be copied" in tracing.trace_state_batch(processor, FLOATS)[1]


def test_the_trial_leaves_processor_and_generators_alone():
    processor = Remembers()
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    for each in (processor, processor_of(numpy_noise), processor_of(python_noise)):
        tracing.trace_state_batch(each, FLOATS)
    assert processor.shapes == []
    assert random.getstate() == python_state
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002
    assert np.random.get_state()[2] == numpy_state[2]  # noqa: NPY002


def test_attributes_that_no_other_method_changes_may_be_arrays():
    class Fixed(Processor):
        def __init__(self):
            self.mean = np.linspace(-1, 1, 6)
            self.notes = {"seen": [np.nan, self], "seed": np.random.default_rng(3)}

        def process_observation(self, observation):
            return observation

        def process_state_batch(self, batch):
            return batch - self.mean

    function, reason = tracing.trace_state_batch(Fixed(), FLOATS)
    assert reason is None
    came = ops.convert_to_numpy(function(ops.convert_to_tensor(FLOATS)))
    np.testing.assert_allclose(came, FLOATS - np.linspace(-1, 1, 6), atol=1e-6)


def test_traced_array_answers_questions_about_its_shape():
    array = TracedArray(ops.convert_to_tensor(FRAMES))
    assert (array.shape, array.ndim, array.size, len(array)) == ((3, 2, 4, 5), 4, 120, 3)
    assert array.dtype == np.uint8
    assert (np.shape(array), np.ndim(array), np.size(array)) == ((3, 2, 4, 5), 4, 120)
    with pytest.raises(NotTraceable, match="a branch"):
        float(array)
