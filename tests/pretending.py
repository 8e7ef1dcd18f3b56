"""Trials that compute nothing: what they take and how long they last is known beforehand."""

from functools import partial

import pytest
from keras import ops

from kerasrl_gpu.learner import Learner
from kerasrl_gpu.tuning import agents

BYTES_A_ROW = 100_000  # beside what is held, for each row computed at a time; more than planned
CALL_S = 1e-3  # of any call, so that the most rows a call are the fastest


class Trials(list):
    """(batch, rows at a time, updates a call) of each trial that was made, in order.

    Attributes:
        now_s: the clock that they are timed by.
        lasts: rows at a time -> seconds of a call.
        on_call: called with the rows at a time at each call; may raise.
    """

    def __init__(self):
        super().__init__()
        self.now_s, self.lasts, self.on_call = 0.0, lambda rows: CALL_S, lambda rows: None

    def make(self, learner, memory, what, batch_size, execution):
        """Stands for `Learner.trial`."""
        rows = execution.rows(batch_size)
        self.append((batch_size, rows, execution.updates_per_call))
        return _Program(rows, lambda: self._call(rows))

    def _call(self, rows):
        self.now_s += self.lasts(rows)
        self.on_call(rows)


class _Program:
    def __init__(self, rows, on_call):
        self._rows, self._on_call = rows, on_call

    def extra_bytes(self, state, pool, wire):
        return BYTES_A_ROW * self._rows

    def __call__(self, state, pool, wire):
        self._on_call()
        return state, pool, ops.zeros(1)


@pytest.fixture
def pretended(monkeypatch) -> Trials:
    """The trials that were made instead of compiled ones."""
    trials = Trials()
    monkeypatch.setattr(Learner, "trial", lambda learner, *args: trials.make(learner, *args))
    monkeypatch.setattr(agents, "search", partial(agents.search, clock=lambda: trials.now_s))
    return trials


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path):
    """Where choices are kept when nobody says where: a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kerasrl_gpu" / "tuning.json"
