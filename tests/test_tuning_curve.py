"""The readings for people: a table and a picture."""

import sys

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from kerasrl_gpu.tuning import curve
from kerasrl_gpu.tuning.choose import Reading, choose
from kerasrl_gpu.tuning.points import Point

MIB = 2**20
REFUSED = "needs up to 7.10 GiB of the 6.00 GiB budget"

EXACT = choose([
    Reading(Point(512, 64, 1), 10_000, 9_000, 11_000, 95 * MIB, "2.1 times slower than the best"),
    Reading(Point(512, 64, 4), 20_000, 19_000, 20_500, 91 * MIB),
    Reading(Point(512, 128, 4), 30_000, 29_000, 30_500, 121 * MIB),
    Reading(Point(512, 512, 1), None, None, None, 7270 * MIB, REFUSED),
])  # fmt: skip
FREE = choose([
    Reading(Point(size, size, 1), 1000.0 * size, 900.0 * size, 1100.0 * size, size * MIB)
    for size in (32, 64, 128)
])  # fmt: skip


def text(choice, width=140):
    console = Console(width=width, color_system=None, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(curve.table(choice))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_the_table_has_a_row_for_each_reading():
    lines = text(EXACT)
    assert "micro-batch fused samples/s p10 - p90 peak" in lines
    assert "64 4 20,000 19,000 - 20,500 91.00 MiB " + 13 * "━" in lines
    assert "128 4 30,000 29,000 - 30,500 121.00 MiB " + 20 * "━" + " chosen" in lines
    slower = f"64 1 10,000 9,000 - 11,000 95.00 MiB {7 * '━'} 2.1 times slower than the best"
    assert slower in lines
    assert f"512 1 - - ≤ 7.10 GiB {REFUSED}" in lines
    assert EXACT.reason in " ".join(lines)


def test_the_table_leaves_out_what_is_the_same_everywhere():
    lines = text(FREE)
    assert "batch samples/s p10 - p90 peak" in lines
    assert "32 32,000 28,800 - 35,200 32.00 MiB " + 5 * "━" in lines


def drawn(monkeypatch, tmp_path, choice, budget_bytes=None):
    """The figure that is written; the file is there."""
    figures = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), savefig(self, *a, **k))
    )
    curve.draw(choice, tmp_path / "curve.png", budget_bytes)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    return figures[0].axes


def marks(axes, hollow):
    """(x, y) of the single marks on the axes."""
    return [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() == "o" and len(line.get_xdata()) == 1
        and (line.get_markerfacecolor() in ("white", "none")) == hollow
    ]  # fmt: skip


def test_the_picture_shows_lines_marks_the_budget_and_the_choice(monkeypatch, tmp_path):
    speed, memory = drawn(monkeypatch, tmp_path, EXACT, budget_bytes=6 << 30)
    lines = {line.get_label(): line.get_xydata().tolist() for line in speed.lines}
    assert lines["1 fused"] == [[64, 10_000]]
    assert lines["4 fused"] == [[64, 20_000], [128, 30_000]]
    assert marks(speed, hollow=False) == [(64, 20_000), (128, 30_000)]
    assert marks(speed, hollow=True) == [(64, 10_000), (128, 30_000)]  # the ring is the second
    [chosen] = speed.texts
    assert chosen.get_text() == "micro_batch=128, updates_per_call=4\n30,000 samples/s"
    bands = [band.get_datalim(speed.transData) for band in speed.collections]
    assert [(band.ymin, band.ymax) for band in bands] == [(9_000, 11_000), (19_000, 30_500)]
    [budget] = [line for line in memory.lines if line.get_linestyle() == "--"]
    assert list(budget.get_ydata()) == [6, 6]
    assert memory.get_ylabel() == "peak, GiB"
    assert [text.get_text() for text in memory.texts] == ["budget 6.00 GiB"]
    tried, refused = (line.get_xydata().tolist() for line in memory.lines[:2])
    assert tried == [[64, 95 / 1024], [128, 121 / 1024]]
    assert refused == [[512, 7270 / 1024]]
    assert memory.get_ylim()[1] > 7270 / 1024


def test_free_batches_are_drawn_over_the_batch(monkeypatch, tmp_path):
    speed, memory = drawn(monkeypatch, tmp_path, FREE)
    assert memory.get_xlabel() == "batch, transitions an update"
    assert not [line for line in memory.lines if line.get_linestyle() == "--"]
    # nothing was ruled out, so the legend does not explain it
    [text] = speed.get_legend().get_texts()
    assert text.get_text() == "median and p10 - p90"


def test_without_matplotlib_the_way_to_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"run pip install 'kerasrl-gpu\[plots\]', or print"):
        curve.draw(EXACT, tmp_path / "curve.png")
