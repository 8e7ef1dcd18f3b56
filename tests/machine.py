"""A machine that exists in numbers only: how long calls take, what they need, and its clock.

    seconds of a call = overhead + fused * (apply + chunks * chunk + batch * row * cache)
    peak bytes        = fixed + slope * micro_batch

`cache` is 1 while a chunk fits into a cache and rises beyond `knee` rows.
"""

import math
from contextlib import contextmanager

import numpy as np


class Machine:
    """Stands for a device.

    Args:
        seed: of the noise.
        noise: standard deviation of a call's time, as a fraction.
        hiccups: fraction of the calls that take 4 times as long.
        spike: how much a probe may exceed the line, as a fraction of the peak, one time in `rare`.
        slows_at_s: on its own clock; from then on everything takes `slows_by` times as long.
        **model: any of the constants above, seconds and bytes.
    """

    def __init__(self, seed=0, noise=0.0, hiccups=0.0, spike=0.0, rare=1, slows_at_s=math.inf,
                 slows_by=3.0, **model):  # fmt: skip
        self.model = {
            "overhead": 300e-6, "apply": 40e-6, "chunk": 60e-6, "row": 1e-6, "knee": 512,
            "fixed": 40 << 20, "slope": 64 << 10,
        } | model  # fmt: skip
        self.random = np.random.default_rng(seed)
        self.noise, self.hiccups, self.spike, self.rare = noise, hiccups, spike, rare
        self.slows_at_s, self.slows_by = slows_at_s, slows_by
        self.now_s = 0.0
        self.probed, self.open, self.calls = {}, set(), []

    def call_s(self, point):
        """Without noise."""
        of = self.model
        chunks = math.ceil(point.batch / point.micro_batch)
        cache = 1 + 0.5 * max(0.0, math.log2(point.micro_batch / of["knee"]))
        update = of["apply"] + chunks * of["chunk"] + point.batch * of["row"] * cache
        return of["overhead"] + point.fused * update

    def rate(self, point):
        """Samples/s without noise."""
        return point.rows_a_call / self.call_s(point)

    def line(self, rows):
        """Peak bytes without a spike."""
        return self.model["fixed"] + self.model["slope"] * rows

    def peak(self, rows):
        spikes = self.spike and self.random.random() < 1 / self.rare
        return int(self.line(rows) * (1 + self.spike * self.random.random() * spikes))

    # What `search` is given ------------------------------------------------------------------

    def clock(self):
        return self.now_s

    def probe_peak(self, point):
        self.probed[point] = self.peak(point.micro_batch)
        return self.probed[point]

    @contextmanager
    def make_run(self, point):
        self.open.add(point)
        try:
            yield lambda: self.run(point)
        finally:
            self.open.remove(point)

    def run(self, point):
        assert point in self.open
        self.calls.append(point)
        factor = math.exp(self.noise * self.random.normal())
        if self.random.random() < self.hiccups:
            factor *= 4
        if self.now_s >= self.slows_at_s:
            factor *= self.slows_by
        self.now_s += self.call_s(point) * factor
