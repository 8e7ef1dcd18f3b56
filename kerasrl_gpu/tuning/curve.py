"""What was measured, for people: as a table and as a picture."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from kerasrl_gpu.tuning.choose import Choice, Reading, in_words, name

_BAR = 20  # characters of the fastest point's bar
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # safe to tell apart
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
    counts = sorted({reading.point.fused for reading in choice.curve})
    for index, fused in enumerate(counts):
        line = [reading for reading in choice.curve if reading.point.fused == fused]
        color = _COLORS[index % len(_COLORS)]
        _draw_speed(speed, line, axis, color, f"{fused} fused" if len(counts) > 1 else "median")
    _draw_memory(memory, choice, axis, budget_bytes)
    _mark(speed, choice, axis)
    label = {"batch": "batch", "micro_batch": "micro-batch"}[axis]
    speed.set_title(f"Samples per second over the {label}", loc="left", fontsize=12, color=_INK)
    speed.set_ylim(bottom=0)
    speed.set_ylabel("samples/s")
    memory.set_ylabel("peak memory")
    memory.set_xlabel(f"{label} (rows computed at a time)")
    speed.legend(frameon=False, fontsize=9, loc="lower right")
    _dress(speed, memory, sorted({getattr(point, axis) for point in points}))
    figure.savefig(path, dpi=150)


def _differ(points, field) -> bool:
    return len({getattr(point, field) for point in points}) > 1


def _figures(reading: Reading) -> list[str]:
    if reading.samples_per_s is None:
        return ["-", "-", f"≤ {in_words(reading.peak_bytes)}"]
    spread = f"{reading.p10:,.0f} - {reading.p90:,.0f}"
    return [f"{reading.samples_per_s:,.0f}", spread, in_words(reading.peak_bytes)]


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


def _draw_speed(axes, line, axis, color, label):
    line = [reading for reading in line if reading.samples_per_s is not None]
    x = [getattr(reading.point, axis) for reading in line]
    y = [reading.samples_per_s for reading in line]
    p10, p90 = [reading.p10 for reading in line], [reading.p90 for reading in line]
    axes.fill_between(x, p10, p90, color=color, alpha=0.18, linewidth=0)
    axes.plot(x, y, color=color, linewidth=1.6, label=label)
    for reading, at, value in zip(line, x, y, strict=True):
        face = color if reading.skipped is None else "white"
        axes.plot(at, value, "o", color=color, markerfacecolor=face, markersize=5)


def _draw_memory(axes, choice, axis, budget_bytes):
    """The largest reading of each size; what was not tried by its upper bound, hollow."""
    for tried, face in ((True, _INK), (False, "white")):
        peaks = {}
        for reading in choice.curve:
            if (reading.samples_per_s is not None) == tried:
                at = getattr(reading.point, axis)
                peaks[at] = max(reading.peak_bytes, peaks.get(at, 0))
        axes.plot(list(peaks), list(peaks.values()), "o", color=_INK, markerfacecolor=face)
    axes.yaxis.set_major_formatter(lambda nbytes, _: in_words(nbytes))
    if budget_bytes is not None:
        axes.axhline(budget_bytes, color=_COLORS[1], linestyle="--", linewidth=1.2)
        text = f"budget {in_words(budget_bytes)}"
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(text, (0, budget_bytes), (4, 3), **place, color=_COLORS[1], fontsize=9)
        axes.set_ylim(0, 1.35 * max(budget_bytes, axes.get_ylim()[1]))


def _mark(axes, choice, axis):
    points = [reading.point for reading in choice.curve]
    reading = next(each for each in choice.curve if each.point == choice.point)
    at = getattr(choice.point, axis), reading.samples_per_s
    axes.plot(*at, "o", markersize=13, markerfacecolor="none", markeredgecolor=_INK, zorder=5)
    text = f"{name(choice.point, points)}\n{reading.samples_per_s:,.0f} samples/s"
    axes.annotate(
        text, at, (0, 14), textcoords="offset points", ha="center", va="bottom", fontsize=10,
        fontweight="bold", color=_INK,
    )  # fmt: skip
    axes.margins(x=0.06, y=0.22)


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
