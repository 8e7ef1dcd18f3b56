"""What the guard does to an agent: smaller parts of a batch, rows off the device, and back."""

from __future__ import annotations

import warnings

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError, SpillFailed
from kerasrl_gpu.guard.judging import ALL_ACTIONS
from kerasrl_gpu.guard.levels import Levels
from kerasrl_gpu.pool.tiers import DEVICE, FILE, HOST

_ON_DEVICE = ("device", "card")  # readings of the device's own memory
_ON_HOST = ("process", "host", "address space")


class Actions:
    """Does what a verdict says, and undoes it.

    Args:
        agent: whose run is guarded.
        levels: `guard.levels.Levels`.
        folder: where the file of a spilled pool is made.
    """

    def __init__(self, agent, levels: Levels, folder):
        self.agent, self._levels, self._folder = agent, levels, folder
        self._parts = []  # (micro_batch before, after) of each time that it was halved
        self._splits = self._spills = True
        self._noted_bytes = 0

    # What was taken -----------------------------------------------------------------------------

    @property
    def nb_parts(self) -> int:
        """How often the micro-batch was halved, and not given back."""
        return len(self._parts)

    @property
    def away_bytes(self) -> int:
        """Bytes of the pool that are not on the device."""
        tiers = self._tiers()
        return tiers[HOST] + tiers[FILE]

    def get_state(self) -> dict:
        """What outlasts the process: where the pool lies does not."""
        return {"parts": [list(sizes) for sizes in self._parts]}

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called."""
        self._parts = [tuple(sizes) for sizes in state["parts"]]

    # Taking and giving back ---------------------------------------------------------------------

    def possible(self, readings, spilled: int, failed: bool) -> frozenset:
        """The actions that can be taken now; see `judge`.

        Args:
            spilled: how many spills are still to be undone.
            failed: whether an allocation failed.
        """
        agent, cannot = self.agent, set()
        if not self._splits or not agent.prepared or agent.execution.rows(agent.batch_size) == 1:
            cannot.add("shrink")
        if not self._parts:
            cannot.add("grow")
        known = [each for each in readings if each.name in _ON_DEVICE + _ON_HOST]
        known = [each for each in known if each.fraction is not None]
        worst = max(known, key=lambda each: each.fraction, default=None)
        if not self._spills or self._helps(None if failed else worst) is None:
            cannot.add("spill")
        if not self._has_room(readings, self._share(spilled)):
            cannot.add("pull")
        return ALL_ACTIONS - cannot

    def do(self, verdict, spilled: int, failed: bool) -> None:
        """Take the action of a verdict; one that turns out to be impossible is a warning.

        Args:
            spilled: how many spills are still to be undone after this.
            failed: whether an allocation failed.
        """
        if verdict.action == "shrink":
            self._shrink()
        elif verdict.action == "grow":
            self._grow()
        elif verdict.action == "spill":
            self._spill(None if failed else verdict.reading)
        elif verdict.action == "pull":
            self._pull(self._share(spilled + 1))

    def note_device(self) -> None:
        """Note how much of the pool is on the device, for `pull_noted`."""
        self._noted_bytes = self._tiers()[DEVICE]

    def pull_noted(self, readings, beside: int) -> None:
        """Bring back what left the device since `note_device`, if there is room for it.

        Args:
            beside: bytes of the host's memory that something else is about to take.
        """
        nbytes = self._noted_bytes - self._tiers()[DEVICE]
        if self._has_room(readings, nbytes, beside if engine.on_cpu() else 0):
            self._pull(nbytes)

    def pull_all(self, readings) -> None:
        """Bring all rows back to the device, if they are away and have room there."""
        if self._has_room(readings, self.away_bytes):
            self._pull(self.away_bytes)

    def _shrink(self):
        agent = self.agent
        before = agent.execution.micro_batch
        try:
            agent.set_micro_batch(-(-agent.execution.rows(agent.batch_size) // 2))
        except ArgumentError as error:
            self._splits = False
            warnings.warn(f"batches stay whole: {error}", stacklevel=5)
        else:
            self._parts.append((before, agent.execution.micro_batch))

    def _grow(self):
        before, after = self._parts.pop()
        if self.agent.execution.micro_batch == after:  # else somebody has set another one since
            self.agent.set_micro_batch(before)

    def _spill(self, reading):
        tier, nbytes = self._helps(reading), 1
        if reading is not None:
            over = reading.fraction - self._levels.spill.leave
            nbytes = max(1, int(over * reading.limit_bytes))
        if tier is not None:
            memory, folder = self.agent.memory, self._folder
            self._spills = self._try(lambda: memory.spill(nbytes, of=tier, folder=folder))

    def _pull(self, nbytes):
        self._try(lambda: self.agent.memory.pull(nbytes))

    # Where rows lie -----------------------------------------------------------------------------

    def _tiers(self) -> dict:
        return self.agent.memory.tier_bytes if self.agent.on_pool else {DEVICE: 0, HOST: 0, FILE: 0}

    def _helps(self, reading) -> str | None:
        """The tier whose rows have to go for a reading to fall; None where no such are left.

        Args:
            reading: None: memory of the device's.
        """
        on_device = reading is None or reading.name in _ON_DEVICE
        of = (DEVICE, HOST) if engine.on_cpu() else (DEVICE,) if on_device else (HOST,)
        tiers = self._tiers()
        return next((tier for tier in of if tiers[tier]), None)

    def _share(self, spilled) -> int:
        """Bytes that come back at a time where so many spills are to be undone."""
        return -(-self.away_bytes // max(1, spilled))

    def _has_room(self, readings, nbytes, beside=0) -> bool:
        """Whether so many bytes more would leave every limit below the level that takes some."""
        if nbytes <= 0:
            return False
        levels = self._levels
        enter = next(
            one for one in (levels.shrink, levels.spill, levels.pause, levels.watch) if one
        )
        names = _ON_HOST if engine.on_cpu() else _ON_DEVICE
        known = [each for each in readings if each.name in names and each.fraction is not None]
        more = nbytes + beside
        return all(each.used_bytes + more < enter.enter * each.limit_bytes for each in known)

    def _try(self, move) -> bool:
        try:
            move()
        except SpillFailed as error:
            warnings.warn(f"step {self.agent.step}: {error}", stacklevel=6)
            return False
        return True
