"""Planned bytes against what a run takes, at sizes where what a run takes is 500 MB and more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kerasrl_gpu import engine

PROGRAM = Path(__file__).with_name("planned_run.py")


def run(backend, *arguments):
    """{"planned", "measured"}, bytes; see `planned_run`."""
    result = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def check(backend, *arguments):
    if "cpu" not in engine.device().lower():
        pytest.skip("a process' resident memory does not tell what a run takes on another device")
    found = run(backend, *arguments)
    assert found["measured"] > 500e6  # below, what compilers take is most of it
    assert found["planned"] == pytest.approx(found["measured"], rel=0.1)


@pytest.mark.parametrize("network, batch_size", [("dqn-256-256", 131_072), ("nature", 1_024)])
def test_a_run_takes_what_was_planned(backend, network, batch_size):
    check(backend, network, batch_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, batch_size",
    [
        ("dqn-64-64", 393_216),
        ("dqn-256-256", 65_536),
        ("dqn-1024-1024", 16_384),
        ("dqn-1024-1024", 32_768),
        ("nature", 1_536),
        ("ddpg-256-256", 98_304),
    ],
)
def test_other_networks_and_batches(backend, network, batch_size):
    check(backend, network, batch_size)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("network, batch_size", [("dqn-256-256", 131_072), ("nature", 2_048)])
def test_mixed_precision(backend, network, batch_size, policy):
    check(backend, network, batch_size, policy)
