"""`DeviceMemory`: keras-rl's memory over the pool."""

from __future__ import annotations

import sys

import numpy as np
from keras import tree

from kerasrl_gpu import contents, engine, tiering
from kerasrl_gpu.errors import ArgumentError, EmptyPool, check_count
from kerasrl_gpu.keras_rl import Experience, Memory
from kerasrl_gpu.observations import ObservationSpec, as_reward
from kerasrl_gpu.planning import budgets, room
from kerasrl_gpu.planning.budgets import AUTO
from kerasrl_gpu.pool import reader, ring, transitions
from kerasrl_gpu.pool.layout import Field, Layout
from kerasrl_gpu.pool.ring import Live
from kerasrl_gpu.units import human_bytes
from kerasrl_gpu.wire import StepWire


class DeviceMemory(Memory):
    """A replay memory in the training device's memory; stands in for `SequentialMemory`.

    Every observation is stored once, in its own dtype, whatever the window; the last observation
    of each episode takes one row more, so time limits are told apart from endings.

    Args:
        limit: rows, final observations included. "auto": as many as `budget` leaves room for
            beside the networks, their optimizers and an update.
        window_length: observations that a state stacks, k.
        ignore_episode_boundaries: stacks run on across episodes instead of being zero-filled.
        keep_dtype: store float64 and 64-bit integers as they are, not as 32 bits.
        budget: what the run may take on the device: "70%" lets the device's use rise to that share
            of its limit, "6GiB" or bytes are this run's own. None is all that is free there; on a
            host the smallest limit of its control groups counts.
        seed: of `sample`; an agent that owns the memory draws from its own seed.

    Raises:
        ArgumentError: limit below window_length + 2, or "auto" without a budget; no budget.

    Attributes:
        limit: a number once the pool is there.
        beside: observation -> room.Beside, what the run takes beside a pool of such; an agent sets
            it.
        settle: () -> None, runs the step that waits in the wire; an agent sets it.
        release: (resized) -> None, lets go of the pool in compiled calls, which comes back as
            another one, maybe of another size; an agent sets it.
        pool: u8[N, row bytes] on the device; None before the first row, and while its rows lie on
            several tiers.
        tiers: `pool.tiers.Tiers` while they do, else None.
        reader: of batches outside of updates.
    """

    def __init__(
        self,
        limit,
        window_length=1,
        ignore_episode_boundaries=False,
        *,
        keep_dtype=False,
        budget=None,
        seed=0,
    ):
        window_length = check_count("window_length", window_length, 1)
        super().__init__(window_length, ignore_episode_boundaries)
        self.limit = room.checked_limit(limit, window_length, budget)
        budgets.parse(budget)
        self.keep_dtype, self.budget, self.seed = keep_dtype, budget, seed
        self.spec = self.layout = self.ring = self.pool = self.tiers = self.wire = None
        self._action, self._span, self.nb_draws = None, 1, 0
        self.saved = None  # `resume.memory.Noted`: the checkpoint that holds these rows
        self.settle, self.beside = lambda: None, lambda observation: room.Beside()
        self.release = lambda resized: None
        self.preferred_limit = None  # of "auto", where a checkpoint's pool had so many rows

    @property
    def least_limit(self) -> int:
        """Rows that the smallest transition takes: its window and the next observation."""
        return self.window_length + 2

    # Allocation --------------------------------------------------------------------------------

    def bind(self, action: Field, span: int = 1) -> None:
        """Say what an action is and how many steps a transition spans, before the first row."""
        if self.ring is not None and _holds(self._action, action) and span == self._span:
            return
        if self.ring is not None:
            raise ArgumentError(
                f"this memory already holds actions {self._action} read over {self._span} steps; "
                f"an agent with actions {action} over {span} steps needs a DeviceMemory of its own."
            )
        self._action, self._span = action, span

    @property
    def action(self) -> Field:
        """What one action is."""
        return self._action or Field("int32", ())

    def estimate(self, observation, action: Field | None = None, limit: int | None = None) -> dict:
        """Exact bytes for observations like this one, before anything exists.

        Args:
            observation: an example.
            action: what one action is; None takes what the agent said that has this memory, or
                one int32 where none has it yet.
            limit: rows; None takes the memory's, for "auto" what there is room for now.

        Returns:
            {"limit", "row_bytes", "nbytes", "fields": {name: bytes in all rows}}.

        Raises:
            PoolTooLarge: the limit is "auto", and the budget has no room for a pool.
        """
        spec = ObservationSpec(observation, self.keep_dtype)
        action = action or self.action
        if limit is None:
            limit = self._room_for(spec, action) if self.limit == AUTO else self.limit
        layout = self._layout(spec, action, limit)
        return {
            "limit": layout.limit,
            "row_bytes": layout.row_bytes,
            "nbytes": layout.nbytes,
            "fields": {name: layout.rows * one.nbytes for name, one in layout.fields.items()},
        }

    def look_at(self, observation) -> None:
        """Take this for what observations look like, unless rows of them are stored already.

        Raises:
            ObservationError, ArgumentError: nothing that a pool on this backend can hold.
        """
        if self.ring is not None:
            return
        spec = ObservationSpec(observation, self.keep_dtype)
        for leaf in spec.fields.values():
            engine.check_storable(leaf.dtype)
        spec.leaves(observation)
        self.spec = spec

    def allocate(self, observation=None) -> None:
        """Make the pool, unless it is there already.

        Args:
            observation: an example; None takes the one that was looked at.

        Raises:
            ArgumentError: nothing was looked at.
            PoolTooLarge: it does not fit; names the largest limit that does.
        """
        if observation is not None:
            self.look_at(observation)
        if self.ring is not None:
            return
        if self.spec is None:
            raise ArgumentError("the pool needs an example; pass memory.allocate(observation).")
        layout = self._layout(self.spec, self.action, self._room_for(self.spec, self.action))
        if self.limit == AUTO:
            self.limit = layout.limit
            size = human_bytes(layout.nbytes)
            print(f"limit={self.limit:_}: {size} of budget={self.budget!r}", file=sys.stderr)
        pool = engine.zeros((layout.rows, layout.row_bytes), "uint8")  # it may not fit
        self._action, self.pool = layout.action, pool
        self.layout, self.ring = layout, ring.Ring(layout, self._span)
        self.wire = StepWire(layout)
        self._put, self._fill = engine.compile_put(self.wire.row), engine.compile_fill()
        self.reader = reader.Reader(layout)

    def _room_for(self, spec, action) -> int:
        """`limit` as a number; raises PoolTooLarge where so many rows have no room."""
        row_bytes = self._layout(spec, action, self.least_limit).row_bytes
        return room.rows_for(self, spec.example, row_bytes)

    def layout_of(self, limit: int) -> Layout:
        """The layout that the pool would have with so many rows."""
        return self._layout(self.spec, self.action, limit)

    def _layout(self, spec, action, limit):
        return Layout(
            leaves=spec.fields,
            action=action,
            limit=limit,
            window=self.window_length,
            cross_episodes=self.ignore_episode_boundaries,
        )

    def begin_again(self) -> None:
        """An empty pool of the same size, where the device has lost the one there was."""
        if self.ring is None:
            return
        self.pool = self.tiers = self.saved = None  # freed before there is another
        self.pool = engine.zeros((self.layout.rows, self.layout.row_bytes), "uint8")
        self.ring = ring.Ring(self.layout, self._span)
        self.reader = reader.Reader(self.layout)
        self.release(False)

    # Writing -----------------------------------------------------------------------------------

    def stage(
        self, observation, action, reward, *, ending=0, start=True, step=None, checked=False
    ) -> None:
        """Write the next row into the wire; the next compiled call stores it.

        Raises:
            ObservationError: an observation of another shape, None or NaN; nothing has changed.
        """
        leaves = self.spec.leaves(observation, step, checked)
        self.wire.set_action(action)
        slot, flags = self.ring.claim(start=start, ending=ending)
        tail = self.ring.tail()
        size = self.ring.heads[0] - tail
        self.wire.set_row(leaves, reward, flags, slot, tail % self.layout.capacity, size)

    @property
    def row_to_write(self):
        """message -> the row, for a call that learns, too; None where it is written before that."""
        return self.wire.row if self.tiers is None else None

    def stage_batches(self, learner, what):
        """Store the staged row, and gather the batches of the next call; see `Tiers.stage`."""
        self.store()
        if not what:
            return None
        message = self.wire.view
        live, draw = Live(message["tail"], message["size"]), int(message["draw"])
        slots = [
            self.tiers.draw(
                live, (int(message["seed"]), draw + update), learner.batch_size, learner.span
            )
            for update in range(learner.updates_per_call)
        ]
        return self.tiers.stage(np.stack(slots))

    def store(self) -> None:
        """Store the staged row by a call of its own."""
        if self.tiers is None:
            self.pool = self._put(self.pool, self.wire)
        else:
            self.tiers.put(self.wire)

    def remember(self, observation, terminal) -> None:
        """Note an observation for the window that acting sees; stores nothing."""
        self.recent_observations.append(observation)
        self.recent_terminals.append(terminal)

    def append(self, observation, action, reward, terminal, training=True):
        """Store one step, as keras-rl does: the row after a terminal one is the last observation.

        Args:
            observation: what the environment showed before the action.
            action: what was done, int or f32[A].
            reward: what came of it, reward units.
            terminal: whether the episode ended there.
            training: False only remembers the observation for the acting window.
        """
        if training:
            self.settle()
            reward = as_reward(reward)
            self.look_at(observation)
            self.allocate()
            self.stage(observation, action, reward, ending=ring.TERMINATED if terminal else 0)
            self.store()
        self.remember(observation, terminal)

    def close_episode(self, observation) -> None:
        """End an episode that was left open, as truncated.

        Args:
            observation: its last one. None where nobody knows it: the newest row becomes the
                final one, and the transition that started there is lost.
        """
        if self.ring is None or not self.ring.is_open():
            return
        if observation is not None:
            self.ring.close(ending=ring.TRUNCATED)
            self.stage(observation, 0, 0.0)
        else:
            slot = self.ring.end_at_newest()
            row = self.read_rows(np.array([slot], np.int32))
            self.wire.set_again(slot, row, ring.TRUNCATED | ring.FINAL)
        self.store()

    def forget_window(self) -> None:
        """Start a new acting window."""
        self.recent_observations.clear()
        self.recent_terminals.clear()

    # Reading -----------------------------------------------------------------------------------

    def see(self, observation, step=None, checked=False) -> None:
        """Write the state that ends in this observation into the wire, for the next call to act on.

        Raises:
            ObservationError: as for `stage`.
        """
        newest = self.spec.leaves(observation, step, checked)  # raises before anything is written
        if self.window_length == 1:
            return self.wire.show(0, newest)
        for position, seen in enumerate(self.get_recent_state(observation)):
            self.wire.show(position, self.spec.leaves(seen, step, checked))

    def get_recent_state(self, current_observation):
        """The last k observations of this episode, zeros of the same dtype before its start."""
        length = self._recent_length()
        zero = tree.map_structure(np.zeros_like, current_observation)
        recent = list(self.recent_observations)[len(self.recent_observations) - length + 1 :]
        return [zero] * (self.window_length - length) + recent + [current_observation]

    def _recent_length(self) -> int:
        """How many observations the acting window has, the current one included."""
        length = 1
        terminals = self.recent_terminals
        last = len(terminals) - 1
        for age in range(min(self.window_length - 1, last + 1)):
            before = last - age - 1
            if before >= 0 and terminals[before] and not self.ignore_episode_boundaries:
                break
            length += 1
        return length

    def sample(self, batch_size, batch_idxs=None, *, rule=None, counters=None):
        """Transitions as keras-rl's `Experience` tuples, on the host.

        Args:
            batch_size: how many, drawn with replacement.
            batch_idxs: rows after the oldest one to start from; rows that cannot start a
                transition are drawn anew, as in keras-rl.
            rule, counters: see `draw_batch`.

        Raises:
            EmptyPool: no stored row can start a transition.
        """
        batch = self.read_batch(batch_size, batch_idxs, rule, counters)
        return [
            Experience(
                self._state(batch["observation"], row),
                batch["action"][row],
                float(batch["reward"][row]),
                self._state(batch["next_observation"], row),
                bool(batch["discount"][row] == 0),
            )
            for row in range(batch_size)
        ]

    def read_batch(self, batch_size, offsets=None, rule=None, counters=None) -> dict:
        """`draw_batch` as host arrays."""
        batch = self.draw_batch(batch_size, offsets, rule, counters)
        return tree.map_structure(engine.to_host, batch)

    def draw_batch(self, batch_size, offsets=None, rule=None, counters=None) -> dict:
        """Draw (or take) starts and read their transitions, in one compiled call.

        Args:
            batch_size: B.
            offsets: i[B], rows after the oldest one; None draws them uniformly.
            rule: `transitions.Rule`; None reads over this memory's span.
            counters: (seed, draw), which a draw is a pure function of; None counts on.

        Returns:
            see `transitions.read`, on the device.

        Raises:
            EmptyPool: no stored row can start a transition.
        """
        self.settle()
        self.check_can_sample()
        rule = rule or transitions.Rule(span=self._span)
        offsets = np.full(batch_size, -1) if offsets is None else offsets
        if counters is None:
            counters, self.nb_draws = (self.seed, self.nb_draws), self.nb_draws + 1
        if self.tiers is not None:
            return self.reader.from_tiers(self.tiers, self.ring.live(), counters, offsets, rule)
        return self.reader(self.pool, self.ring.live(), counters, offsets, rule)

    def check_can_sample(self) -> None:
        """Raise EmptyPool unless a stored row can start a transition."""
        if self.ring is None or not self.ring.has_start():
            held = 0 if self.ring is None else len(self.ring)
            raise EmptyPool(
                f"none of the {held} stored rows can start a transition yet: each needs its window "
                "of earlier observations and its next one. Raise nb_steps_warmup, or limit."
            )

    def read_rows(self, slots: np.ndarray) -> np.ndarray:
        """u8[n, row bytes] of these slots i32[n], on the host."""
        if self.tiers is not None:
            return self.tiers.read(slots)
        return engine.to_host(engine.take_rows(self.pool, slots))

    def write_rows(self, slot: int, rows: np.ndarray) -> None:
        """Replace rows u8[n, row bytes] from that slot on; each n compiles once."""
        if self.tiers is not None:
            self.tiers.take(slot, rows)
        else:
            self.pool = self._fill(self.pool, slot, rows)

    def _state(self, leaves, row) -> list:
        """Row b of {leaf: [B, k, ...]} as k observations in the environment's structure."""
        return [
            self.spec.pack({name: leaf[row, position] for name, leaf in leaves.items()})
            for position in range(self.window_length)
        ]

    # What it holds -----------------------------------------------------------------------------

    @property
    def nb_entries(self) -> int:
        """Rows stored, final observations included, as keras-rl counts."""
        return 0 if self.ring is None else len(self.ring)

    @property
    def nbytes(self) -> int:
        """Bytes of the pool, wherever it lies; 0 before the first row."""
        return 0 if self.layout is None else self.layout.nbytes

    # Where its rows lie -------------------------------------------------------------------------

    tier_bytes, device_bytes = tiering.tier_bytes, tiering.device_bytes
    spill, pull, resize = tiering.spill, tiering.pull, tiering.resize

    # All of it, copied to the host, oldest first.
    observations, actions = contents.observations, contents.actions
    rewards, terminals = contents.rewards, contents.terminals

    def get_config(self) -> dict:
        """keras-rl's keys and ours."""
        return {
            **super().get_config(),
            "limit": self.limit,
            "keep_dtype": self.keep_dtype,
            "budget": self.budget,
            "seed": self.seed,
        }

    def __reduce_ex__(self, protocol):
        raise TypeError(
            "a DeviceMemory lives on a device and is not pickled or deep-copied; "
            "save the agent with agent.save(path), which writes the pool's rows too."
        )


def _holds(stored: Field, action: Field) -> bool:
    """Whether a pool with such actions can store these, too."""
    return stored.shape == action.shape and np.can_cast(action.dtype, stored.dtype)
