"""What the guard does to an agent: smaller parts of a batch, rows off the device, and back."""

from __future__ import annotations

import warnings

from kerasrl_gpu import engine, probes
from kerasrl_gpu.errors import ArgumentError, KerasRLError, SpillFailed
from kerasrl_gpu.guard.judging import ALL_ACTIONS
from kerasrl_gpu.guard.levels import Levels
from kerasrl_gpu.pool.tiers import DEVICE, FILE, HOST
from kerasrl_gpu.units import human_bytes

_ON_DEVICE = ("device", "card")  # readings that spilling to the host helps


class Actions:
    """Does what a verdict says, and undoes it.

    Args:
        agent: whose run is guarded.
        levels: `guard.levels.Levels`.
        folder: where the file of a spilled pool is made.
    """

    def __init__(self, agent, levels: Levels, folder):
        self._agent, self._levels, self._folder = agent, levels, folder
        self._parts = []  # micro_batch before each time that it was halved
        self._splits, self._spills = True, True

    def possible(self, readings) -> frozenset:
        """The actions that can be taken now; see `judge`."""
        agent = self._agent
        cannot = set()
        if not self._splits or not agent.prepared or agent.execution.rows(agent.batch_size) == 1:
            cannot.add("shrink")
        if not self._parts:
            cannot.add("grow")
        tiers = agent.memory.tier_bytes if agent.on_pool else {DEVICE: 0, HOST: 0, FILE: 0}
        if not self._spills or not tiers[DEVICE] + tiers[HOST]:
            cannot.add("spill")
        if not self._has_room(readings, tiers[HOST] + tiers[FILE]):
            cannot.add("pull")
        return ALL_ACTIONS - cannot

    def do(self, verdict, steps: int) -> None:
        """Take the action of a verdict; one that turns out to be impossible is a warning.

        Args:
            steps: how many spills are still to be undone; each "pull" undoes one.
        """
        {"shrink": self._shrink, "grow": self._grow, "spill": self._spill, "pull": self._pull}[
            verdict.action
        ](verdict, steps)

    def pull_all(self, readings) -> None:
        """Bring all rows back to the device, if they are away and have room there."""
        if not self._agent.on_pool or self._agent.memory.tiers is None:
            return
        tiers = self._agent.memory.tier_bytes
        if self._has_room(readings, tiers[HOST] + tiers[FILE]):
            self._try(lambda: self._agent.memory.pull())

    def _shrink(self, verdict, steps):
        agent = self._agent
        before = agent.execution.micro_batch
        try:
            agent.set_micro_batch(-(-agent.execution.rows(agent.batch_size) // 2))
        except ArgumentError as error:
            self._splits = False
            warnings.warn(f"batches stay whole: {error}", stacklevel=4)
        else:
            self._parts.append(before)

    def _grow(self, verdict, steps):
        self._agent.set_micro_batch(self._parts.pop())

    def _spill(self, verdict, steps):
        reading, level = verdict.reading, self._levels.spill or self._levels.watch
        nbytes = 1
        if reading is not None and reading.fraction is not None:
            nbytes = max(1, int((reading.fraction - level.leave) * reading.limit_bytes))
        on_device = reading is not None and reading.name in _ON_DEVICE
        memory, tiers = self._agent.memory, self._agent.memory.tier_bytes
        of = DEVICE if on_device or engine.on_cpu() or not tiers[HOST] else HOST
        to = None if on_device else FILE
        if not self._try(lambda: memory.spill(nbytes, of=of, to=to, folder=self._folder)):
            self._spills = False

    def _pull(self, verdict, steps):
        memory = self._agent.memory
        away = memory.nbytes - memory.tier_bytes[DEVICE]
        self._try(lambda: memory.pull(-(-away // max(1, steps + 1))))

    def _has_room(self, readings, nbytes) -> bool:
        """Whether so many bytes more would leave every limit below the level that spills."""
        if not nbytes:
            return False
        level = self._levels.spill or self._levels.pause or self._levels.watch
        names = ("process", "host", "address space") if engine.on_cpu() else _ON_DEVICE
        known = [each for each in readings if each.name in names and each.fraction is not None]
        return all(each.used_bytes + nbytes < level.enter * each.limit_bytes for each in known)

    def _try(self, move) -> bool:
        try:
            move()
        except SpillFailed as error:
            warnings.warn(f"step {self._agent.step}: {error}", stacklevel=5)
            return False
        return True


def budget_bytes(budget) -> int | None:
    """A budget in bytes of the host's memory; None for no budget."""
    if budget is None:
        return None
    if budget.bytes is not None:
        return budget.bytes
    limit = probes.host_limit().bytes
    if limit is None:
        raise ArgumentError("a share of the host's memory, whose size cannot be read; pass bytes.")
    return int(limit * budget.share)


def check_budget(agent, budget) -> None:
    """Raise ArgumentError where a run takes more of the host than its budget, with the sum."""
    may = budget_bytes(budget)
    if may is None:
        return
    try:
        plan = agent.plan()
    except KerasRLError:  # what cannot be planned is only watched
        return
    process = probes.process_rss() or 0
    on_host = engine.on_cpu()
    pool_bytes = plan.pool_bytes if on_host and agent.memory.tiers is None else 0
    step_bytes = plan.step_bytes if on_host else 0
    needs = process + step_bytes + pool_bytes
    if needs > may:
        raise ArgumentError(
            f"budget={may:_} B is less than this run takes: the process with its networks has "
            f"{human_bytes(process)} already, an update takes {human_bytes(step_bytes)}, the "
            f"pool when it is full {human_bytes(pool_bytes)}, in all {human_bytes(needs)}. Pass "
            f"budget={needs:_} or more, a smaller limit, or a smaller micro_batch."
        )
