"""`kerasrl-gpu doctor`: what it prints, and the sentences about what is wrong."""

import os
import re
import subprocess
import sys

import pytest
from trees import GIB, MIB

from kerasrl_gpu import DeviceMemory, engine, probes
from kerasrl_gpu.cli import main
from kerasrl_gpu.commands import advice, doctor
from kerasrl_gpu.commands.advice import Facts, Pool
from kerasrl_gpu.probes import Reading

INSTALLED = dict.fromkeys(doctor._DISTRIBUTIONS, "1.0")
CARD = Reading("card", 2 * GIB, 80 * GIB, "NVML, a card")
WELL = Facts(
    asked="tensorflow",
    backend="tensorflow",
    failure=None,
    devices=["GPU:0"],
    on_cpu=False,
    growth=True,
    installed=INSTALLED,
    readings=[CARD, Reading("disk", GIB, 100 * GIB, "the file system of /runs")],
)
ON_CPU = WELL._replace(devices=["CPU:0"], on_cpu=True, growth=False, readings=[])


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What the command sets for itself does not stay."""
    for variable in ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(variable, "")


def without(*names):
    return {name: None if name in names else number for name, number in INSTALLED.items()}


# What is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [WELL, ON_CPU], ids=["GPU", "CPU"])
def test_where_nothing_is_wrong_nothing_is_said(facts):
    assert advice.give(facts, Pool(1_000, 7, 7_000, 8_000)) == []


@pytest.mark.parametrize(
    ("facts", "sentences"),
    [
        (
            {"asked": None, "failure": "x", "installed": without("tensorflow", "jax")},
            ["KERAS_BACKEND is not set, so that Keras takes TensorFlow, which is not installed: "
             "`pip install 'tensorflow'`."],
        ),
        (
            {"asked": None, "failure": "x", "installed": without("tensorflow")},
            ["KERAS_BACKEND is not set, so that Keras takes TensorFlow, which is not installed: "
             "`pip install 'tensorflow'`, or take JAX: `export KERAS_BACKEND=jax`."],
        ),
        (
            {"asked": "jax", "failure": "x", "installed": without("jax")},
            ["KERAS_BACKEND=jax, and JAX is not installed: `pip install 'kerasrl-gpu[jax]'`, or "
             "take TensorFlow: `export KERAS_BACKEND=tensorflow`."],
        ),
        (
            {"asked": "torch", "failure": "x"},
            ["KERAS_BACKEND=torch is no backend of this package: "
             "`export KERAS_BACKEND=tensorflow`, or jax."],
        ),
        (
            {"asked": None, "failure": "ImportError: libfoo.so is missing."},
            ["TensorFlow cannot be loaded: ImportError: libfoo.so is missing."],
        ),
        (
            {"on_cpu": True},
            ["There is a GPU, and TensorFlow sees none: `pip install 'tensorflow[and-cuda]'`."],
        ),
        (
            {"on_cpu": True, "backend": "jax"},
            ["There is a GPU, and JAX sees none: `pip install 'kerasrl-gpu[jax-cuda]'`."],
        ),
        (
            {"growth": False},
            ["TensorFlow takes all of the GPU's memory at its start, and no other process gets "
             "it: call `kerasrl_gpu.set_memory_growth()` right behind the imports where several "
             "share the GPU."],
        ),
        (
            {"installed": without("psutil", "nvidia-ml-py")},
            ["psutil is not installed, so that memory is read from /proc alone, which only Linux "
             "has: `pip install psutil`.",
             "nvidia-ml-py is not installed, so that nobody sees what other processes take of the "
             "GPU: `pip install nvidia-ml-py`."],
        ),
        (
            {"readings": [Reading("disk", 90 * GIB, 100 * GIB, "the file system of /runs")]},
            ["The disk is nearly full: 10.00 GiB of 100.00 GiB are left on the file system of "
             "/runs; checkpoints need room for two at a time. Look at `du -sh *` there, or save "
             "somewhere else."],
        ),
        (
            {"readings": [Reading("card", 60 * GIB, 80 * GIB, "NVML", others_bytes=50 * GIB)]},
            ["75% of the GPU's memory is in use, 50.00 GiB of it by others: end what is not "
             "needed, or pass a `budget=` to the memory (NVML)."],
        ),
    ],
    ids=["no backend", "JAX is there", "no JAX", "torch", "broken", "no CUDA", "no CUDA on JAX",
         "no growth", "no packages", "disk", "card"],
)  # fmt: skip
def test_what_is_wrong_is_said_with_what_mends_it(facts, sentences):
    assert advice.give(WELL._replace(**facts), None) == sentences


def test_what_is_below_its_mark_is_not_said():
    # the disk at 89 %, the card at 74 %; a disk that cannot be asked
    readings = [
        Reading("disk", 89, 100, "a disk"),
        Reading("card", 74, 100, "NVML"),
        probes.readings.absent("disk", "a disk", "It cannot be asked."),
    ]
    assert advice.give(WELL._replace(readings=readings), None) == []


def test_a_card_that_cannot_be_read_is_no_gpu_that_is_not_seen():
    hidden = [probes.readings.absent("card", "NVML", "CUDA_VISIBLE_DEVICES='' hides every card.")]
    assert advice.give(ON_CPU._replace(readings=hidden), None) == []


def test_a_pool_that_does_not_fit_is_told_the_largest_that_does():
    # floor(1,000 / 7) = 142 rows
    found = advice.give(WELL, Pool(200, 7, 1_400, 1_000))
    assert len(found) == 1
    assert "pass limit=142 or less" in found[0]
    assert advice.give(WELL, Pool(200, 7, 1_400, 1_400)) == []
    assert advice.give(WELL, Pool(200, 7, 1_400, None)) == []


def test_a_pool_that_the_disk_or_the_machine_has_no_room_for_now():
    readings = [Reading("disk", 70, 100, "a disk"), Reading("host", 60, 100, "/proc/meminfo")]
    facts = ON_CPU._replace(readings=readings)
    # 30 are left on the disk, 40 in the machine
    assert advice.give(facts, Pool(30, 1, 30, 100)) == []
    (disk,) = advice.give(facts, Pool(31, 1, 31, 100))
    assert "a disk has 30 B left" in disk
    host, disk = advice.give(facts, Pool(41, 1, 41, 100))
    assert "more than the machine has left just now, 40 B" in host


# What is printed ---------------------------------------------------------------------------------


def test_everything_is_printed(tmp_path, capsys, backend):
    status = main(["doctor", "--path", str(tmp_path / "runs")])
    said = capsys.readouterr().out
    assert status == 0
    assert said.startswith("kerasrl-gpu ")
    assert re.search(rf"backend: {backend}, on .+", said)
    assert re.search(r"keras \d+\.\d+.*keras-rl2 1\.", said)
    for name in ("device", "card", "process", "host", "address space", "stalls", "disk"):
        assert re.search(rf"^  {name} +\S", said, re.MULTILINE), name
    assert f"(the file system of {tmp_path})" in said
    assert "closest to its limit: " in said


def test_a_pool_is_priced_as_the_memory_does(capsys):
    words = ["--limit", "1,000", "--observation", "84x84:uint8"]
    assert main(["doctor", *words]) == 0
    # 84 * 84 bytes of frame, 4 of an action, 4 of a reward, 1 of flags
    assert "a pool of 1,000 rows of 7,065 B takes 6.74 MiB; " in capsys.readouterr().out


def test_a_pool_that_does_not_fit_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(probes, "host_limits", lambda: [probes.Limit(8 * MIB, 7 * MIB, "a test")])
    if not engine.on_cpu():
        pytest.skip("the pool lies on a GPU")
    assert main(["doctor", "--limit", "1_000", "--observation", "84x84:uint8"]) == 1
    # floor(1 MiB / 7,065) = 148
    assert "pass limit=148 or less" in capsys.readouterr().out


def test_a_card_is_left_to_the_runs_beside(monkeypatch, backend):
    for variable in ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.delenv(variable)
    facts = doctor.examine(".")
    assert not facts.growth  # as it was found
    assert engine.memory_growth()


@pytest.mark.parametrize(
    ("readings", "sentence"),
    [
        # of 3/4, 4/8 and a disk at 9/10 the first: a disk is no memory
        (
            [
                Reading("host", 4, 8, "b"),
                Reading("process", 3, 4, "a"),
                Reading("disk", 9, 10, "c"),
                Reading("stalls", None, None, "d", share=0.99),
            ],
            "closest to its limit: process, 3 B of 4 B (a)",
        ),
        ([probes.readings.absent("host", "b", "No.")], "No limit on memory could be read."),
    ],
)
def test_the_limit_that_binds(readings, sentence):
    assert doctor._binding(readings) == sentence


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        (
            Reading("card", 1, 4, "NVML", 1),
            "  card          25%, 1 B of 4 B, 1 B by others  (NVML)",
        ),
        (Reading("device", 1, None, "x"), "  device        1 B  (x)"),
        (Reading("stalls", None, None, "x", share=0.5), "  stalls        50%  (x)"),
        (probes.readings.absent("card", "x", "No."), "  card          -  No."),
    ],
)
def test_a_reading_is_a_line(reading, line):
    assert doctor._line(reading) == line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--observation", "84xa"], "--observation 84xa: pass a shape and a type, such as 84x84"),
        (["--observation", "84:what"], "--observation 84:what: pass a shape"),
        (["--observation", "0"], "--observation 0: pass a shape"),
        (["--observation", ":uint8"], "--observation :uint8: pass a shape"),
        (["--observation", "3:datetime64"], "datetime64"),
        (["--limit", "many", "--observation", "3"], "--limit many: pass a whole number"),
        (["--limit", "0", "--observation", "3"], "--limit"),
        (["--limit", "1", "--observation", "3"], "limit=1 is too small"),
    ],
)
def test_bad_input_is_a_sentence_and_a_status(words, sentence, capsys):
    assert main(["doctor", *words]) == 1
    assert sentence in capsys.readouterr().err


def test_an_observation_without_a_type_is_of_floats():
    assert doctor.observation("17") == ((17,), "float32")
    assert doctor.observation("4x3:f2") == ((4, 3), "float16")


# Where it is needed most -------------------------------------------------------------------------


def test_a_backend_that_cannot_be_loaded_leaves_the_rest_readable(tmp_path):
    code = (
        "import sys\n"
        "sys.modules['tensorflow'] = sys.modules['jax'] = None\n"
        "from kerasrl_gpu.cli import main\n"
        "sys.exit(main(['doctor', '--observation', '3']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 1, done.stderr
    assert "closest to its limit: " in done.stdout
    assert re.search(r"^- (TensorFlow|JAX) cannot be loaded: ", done.stdout, re.MULTILINE)


def test_what_is_priced_is_what_a_memory_says():
    import numpy as np

    told = DeviceMemory(500).estimate(np.zeros((17,), "float32"))
    priced = doctor.price(500, doctor.Observation((17,), "float32"))
    assert (priced.nbytes, priced.row_bytes) == (told["nbytes"], told["row_bytes"])
