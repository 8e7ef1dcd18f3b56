"""What was measured, for people: as a table and as a picture."""

from __future__ import annotations

import io
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning.choose import Choice, Reading, name
from kerasrl_gpu.units import human_bytes

_WIDTH = 118  # characters; in fewer, notes are broken into many lines
_FORMATS = (".png", ".svg", ".pdf")
_BAR = 20  # characters of the fastest point's bar
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # safe to tell apart
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_INK, _FAINT = "#333333", "#b0b0b0"


def table(choice: Choice) -> Table:
    """The readings, a row each, with the reason below; print it with a rich console."""
    points = [reading.point for reading in choice.curve]
    free, fuses = _differ(points, "batch"), _differ(points, "fused")
    view = Table(box=box.SIMPLE_HEAD, caption=choice.reason, caption_justify="left")
    view.add_column("batch" if free else "micro-batch", justify="right")
    if fuses:
        view.add_column("fused", justify="right")
    for heading in ("samples/s", "p10 - p90", "peak"):
        view.add_column(heading, justify="right")
    view.add_column("", no_wrap=True, min_width=_BAR)
    view.add_column("")
    fastest = max((reading.samples_per_s or 0 for reading in choice.curve), default=0) or 1
    for reading in choice.curve:
        chosen = reading.point == choice.point
        size = reading.point.batch if free else reading.point.micro_batch
        fused = [f"{reading.point.fused:,}"] if fuses else []
        note = Text("chosen", "bold green") if chosen else Text(reading.skipped or "", "dim")
        style = "bold" if chosen else "dim" if reading.skipped else ""
        bar = "━" * round(_BAR * (reading.samples_per_s or 0) / fastest)
        bar = Text(bar, "green" if chosen else "bright_black" if reading.skipped else "cyan")
        view.add_row(f"{size:,}", *fused, *_figures(reading), bar, note, style=style)
    return view


def text(choice: Choice) -> str:
    """The table as plain text, as wide as it needs to be."""
    console = Console(width=_WIDTH, file=io.StringIO(), color_system=None)
    console.print(table(choice))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def check_path(path) -> None:
    """Raise ArgumentError unless `draw` can write there; it takes no measurement to know.

    Raises:
        ImportError: matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ArgumentError(f"{path} is no picture's name; let it end in one of {_FORMATS}.")
    if not path.parent.is_dir():
        raise ArgumentError(f"there is no folder {path.parent} for {path.name}; make it first.")
    _figure()


def draw(choice: Choice, path, budget_bytes: int | None = None) -> None:
    """Write a picture: samples/s over the micro-batch, and the peak memory below it.

    A line for each number of fused updates with its p10 - p90 band; hollow marks are points that
    could not be chosen. The batch takes the micro-batch's place where it differs.

    Args:
        choice: what was chosen.
        path: the file; its ending is the format, .png, .svg or .pdf.
        budget_bytes: drawn as a limit, if it is given.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = _figure()
    speed, memory = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    points = [reading.point for reading in choice.curve]
    axis = "batch" if _differ(points, "batch") else "micro_batch"
    sizes = sorted({getattr(point, axis) for point in points})
    _dress(speed, memory, sizes)
    _draw_speed(speed, choice.curve, axis)
    _draw_memory(memory, choice.curve, axis, budget_bytes)
    _mark(speed, choice, axis, right=getattr(choice.point, axis) > sizes[len(sizes) // 2])
    label = {"batch": "batch", "micro_batch": "micro-batch"}[axis]
    speed.set_title(f"Samples per second over the {label}", loc="left", fontsize=12, color=_INK)
    what = "transitions an update" if axis == "batch" else "transitions computed at a time"
    memory.set_xlabel(f"{label}, {what}", color=_INK)
    figure.savefig(path, dpi=150)


def _differ(points, field) -> bool:
    return len({getattr(point, field) for point in points}) > 1


def _figures(reading: Reading) -> list[str]:
    if reading.samples_per_s is None:
        return ["-", "-", f"≤ {human_bytes(reading.peak_bytes)}"]
    spread = f"{reading.p10:,.0f} - {reading.p90:,.0f}"
    return [f"{reading.samples_per_s:,.0f}", spread, human_bytes(reading.peak_bytes)]


def _figure():
    """A figure of its own, so that pyplot's backend and open figures stay as they are."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "the picture is drawn by matplotlib, which is not installed; run "
            "pip install 'kerasrl-gpu[plots]', or print the table instead."
        ) from error
    return Figure(figsize=(8, 5.5), layout="constrained")


def _draw_speed(axes, curve, axis):
    counts = sorted({reading.point.fused for reading in curve})
    for index, fused in enumerate(counts):
        line = [each for each in curve if each.point.fused == fused and each.samples_per_s]
        x = [getattr(reading.point, axis) for reading in line]
        color = _COLORS[index % len(_COLORS)]
        p10, p90 = [reading.p10 for reading in line], [reading.p90 for reading in line]
        axes.fill_between(x, p10, p90, color=color, alpha=0.18, linewidth=0)
        label = "median and p10 - p90" if len(counts) == 1 else f"{fused:,} fused"
        axes.plot(x, [reading.samples_per_s for reading in line], color=color, label=label)
        for reading, at in zip(line, x, strict=True):
            face = color if reading.skipped is None else "white"
            axes.plot(at, reading.samples_per_s, "o", color=color, markerfacecolor=face)
    if any(reading.skipped and reading.samples_per_s for reading in curve):
        axes.plot([], [], "o", color=_INK, markerfacecolor="white", label="ruled out")
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="lower right")
    axes.set_ylabel("samples/s", color=_INK)
    axes.margins(y=0.22)
    axes.set_ylim(bottom=0)


def _draw_memory(axes, curve, axis, budget_bytes):
    """The largest reading of each size; what was not tried by its upper bound, hollow."""
    most = max([budget_bytes or 0, *(reading.peak_bytes for reading in curve)])
    unit, unit_bytes = next((each for each in _UNITS if most >= each[1]), _UNITS[-1])
    for tried, face in ((True, _INK), (False, "white")):
        peaks = {}
        for reading in curve:
            if (reading.samples_per_s is not None) == tried:
                at = getattr(reading.point, axis)
                peaks[at] = max(reading.peak_bytes / unit_bytes, peaks.get(at, 0))
        axes.plot(list(peaks), list(peaks.values()), "o", color=_INK, markerfacecolor=face)
    if budget_bytes is not None:
        limit = budget_bytes / unit_bytes
        axes.axhline(limit, color=_COLORS[1], linestyle="--", linewidth=1.2)
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        text = f"budget {human_bytes(budget_bytes)}"
        axes.annotate(text, (0, limit), (4, 3), **place, color=_COLORS[1], fontsize=9)
    axes.set_ylim(-0.08 * most / unit_bytes, 1.35 * most / unit_bytes)
    axes.set_ylabel(f"peak, {unit}", color=_INK)


def _mark(axes, choice, axis, right):
    """A ring around the chosen point, and its name, to its left where it is far right."""
    points = [reading.point for reading in choice.curve]
    reading = next(each for each in choice.curve if each.point == choice.point)
    at = getattr(choice.point, axis), reading.samples_per_s
    axes.plot(*at, "o", markersize=13, markerfacecolor="none", markeredgecolor=_INK, zorder=5)
    text = f"{name(choice.point, points)}\n{reading.samples_per_s:,.0f} samples/s"
    style = {"fontsize": 10, "fontweight": "bold", "color": _INK, "va": "bottom"}
    x, align = (8, "right") if right else (-8, "left")
    axes.annotate(text, at, (x, 12), textcoords="offset points", ha=align, **style)


def _dress(speed, memory, sizes):
    memory.set_xscale("log", base=2)
    memory.set_xticks(sizes, [f"{size:,}" for size in sizes])
    memory.minorticks_off()
    speed.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (speed, memory):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_FAINT)
        axes.grid(axis="y", color=_FAINT, alpha=0.35, linewidth=0.7)
        axes.tick_params(colors=_INK, length=3, labelsize=9)
