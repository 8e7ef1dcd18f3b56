"""Memory over time as a picture: the readings, the guard's levels, what it did, and the pool."""

from __future__ import annotations

from pathlib import Path

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.guard.levels import PAUSE, SHRINK, SPILL, WATCH
from kerasrl_gpu.units import human_bytes

TIERS = ("device", "host", "file")
_FORMATS = (".png", ".svg", ".pdf")
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # safe to tell apart
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_TOP = 118  # %; room for the legend above 100
_TIMES = (("hours", 3600), ("minutes", 60), ("seconds", 1))
_INK, _FAINT = "#333333", "#b0b0b0"


def check_path(path) -> None:
    """Raise ArgumentError unless `draw` can write there.

    Raises:
        ImportError: matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ArgumentError(f"{path} is no picture's name; let it end in one of {_FORMATS}.")
    if not path.parent.is_dir():
        raise ArgumentError(f"there is no folder {path.parent} for {path.name}; make it first.")
    _figure()


def draw(path, samples, events=(), levels=None) -> None:
    """Write a picture: each reading as a share of its limit, and the pool's bytes below it.

    Args:
        path: the file; its ending is the format, .png, .svg or .pdf.
        samples: `events.Sample`s in the order of time, at least one.
        events: `events.Event`s; each is marked at its time, with its action or its new state.
        levels: a `Levels`, whose enter levels are drawn as lines, if it is given.

    Raises:
        ArgumentError: there is no sample, or nothing can be written at `path`.
        ImportError: matplotlib is not installed.
    """
    check_path(path)
    if not samples:
        raise ArgumentError("there is no sample to draw; let the run take one first.")
    figure = _figure()
    shares, pool = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    began, ended = samples[0].time, max(samples[-1].time, samples[0].time + 1)
    unit, unit_s = next(each for each in _TIMES if ended - began >= 2 * each[1] or each[1] == 1)
    _draw_shares(shares, samples, began, unit_s)
    _draw_levels(shares, levels)
    _draw_events(shares, [each for each in events if began <= each.time <= ended], began, unit_s)
    _draw_pool(pool, samples, began, unit_s)
    _dress(shares, pool)
    shares.set_xlim(0, (ended - began) / unit_s)
    pool.set_xlabel(f"{unit} since step {samples[0].step:,}", color=_INK)
    figure.savefig(path, dpi=150)


def _figure():
    """A figure of its own, so that pyplot's backend and open figures stay as they are."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "the picture is drawn by matplotlib, which is not installed; run "
            "pip install 'kerasrl-gpu[plots]', or read the numbers with MemoryTrace.read."
        ) from error
    return Figure(figsize=(9, 6), layout="constrained")


def _draw_shares(axes, samples, began, unit_s):
    """A line for each name; where it could not be read, the line has a gap."""
    names = dict.fromkeys(
        each.name for sample in samples for each in sample.readings if each.fraction is not None
    )
    names.pop("disk", None)  # it fills slowly, and the guard does not go by it
    x = [(sample.time - began) / unit_s for sample in samples]
    for index, name in enumerate(names):
        line = [_of(sample, name) for sample in samples]
        y = [float("nan") if each is None else 100 * each.fraction for each in line]
        color, label = _COLORS[index % len(_COLORS)], f"{name}, {_most(line)}"
        axes.plot(x, y, color=color, label=label, linewidth=1.4)
    if names:
        axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="upper left", ncols=2)


def _of(sample, name):
    """The fullest reading of that name, or None."""
    known = [each for each in sample.readings if each.name == name and each.fraction is not None]
    return max(known, key=lambda each: each.fraction, default=None)


def _most(line) -> str:
    """The largest reading of a line, in words."""
    most = max((each for each in line if each is not None), key=lambda each: each.fraction)
    if most.share is not None:
        return f"at most {100 * most.share:.0f} % of the time"
    return f"at most {human_bytes(most.used_bytes)} of {human_bytes(most.limit_bytes)}"


def _draw_levels(axes, levels):
    if levels is None:
        return
    enters = {
        state.lower(): levels.of(state).enter
        for state in (WATCH, SHRINK, SPILL, PAUSE)
        if levels.of(state) is not None
    }
    if levels.exit is not None:
        enters["exit"] = levels.exit
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    for name, enter in enters.items():
        axes.axhline(100 * enter, color=_FAINT, linestyle="--", linewidth=0.9, zorder=0)
        axes.annotate(name, (1, 100 * enter), (4, 0), **place, color=_INK, fontsize=8)


def _draw_events(axes, events, began, unit_s):
    """A line where something was done, a dotted one where only the state changed."""
    place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    paper = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    for event in events:
        x, style = (event.time - began) / unit_s, "-" if event.action else ":"
        axes.axvline(x, 0, 100 / _TOP, color=_INK, linestyle=style, linewidth=0.9, alpha=0.4)
        word, look = event.action or event.after, {"color": _INK, "fontsize": 8, "rotation": 90}
        axes.annotate(word, (x, 0.04), (0, 0), **place, **look, ha="center", bbox=paper)


def _draw_pool(axes, samples, began, unit_s):
    """The tiers on top of each other; those that were never used are left out."""
    known = [sample for sample in samples if sample.tier_bytes]
    x = [(sample.time - began) / unit_s for sample in known]
    rows = {tier: [sample.tier_bytes.get(tier) or 0 for sample in known] for tier in TIERS}
    rows = {tier: row for tier, row in rows.items() if any(row)}
    most = max((sum(row) for row in zip(*rows.values())), default=0)
    unit, unit_bytes = next((each for each in _UNITS if most >= each[1]), _UNITS[-1])
    if rows:
        scaled = [[nbytes / unit_bytes for nbytes in row] for row in rows.values()]
        colors = [_COLORS[TIERS.index(tier)] for tier in rows]
        axes.stackplot(x, scaled, labels=list(rows), colors=colors, alpha=0.55, linewidth=0)
        axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="upper left", ncols=3)
    axes.set_ylim(0, 1.35 * most / unit_bytes or 1)
    axes.set_ylabel(f"replay pool, {unit}", color=_INK)


def _dress(shares, pool):
    shares.set_title("Memory in use, of each limit", loc="left", fontsize=12, color=_INK)
    shares.set_ylim(0, _TOP)
    shares.set_yticks([0, 25, 50, 75, 100])
    shares.set_ylabel("% of the limit", color=_INK)
    for axes in (shares, pool):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_FAINT)
        axes.tick_params(colors=_INK, length=3, labelsize=9)
