"""The arithmetic of the benchmarks: percentiles, paired ratios, records and the table."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name, file):
    """A script of the folder, which is no package, under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


summary = load("benchmark_summary", "summary.py")
rows = load("benchmark_rows", "rows.py")
side = load("benchmark_side", "peers/side.py")

HEADER = {"commit": "abc1234", "device": "2 cores", "quick": True, "repeats": 2, "command": "run"}


def report(values, compile_s=None, backend="jax", **notes):
    versions = {backend: "1.0", "python": "3.11"}
    return {
        "values": values, "compile_s": compile_s, "device": "cpu", "versions": versions, **notes,
    }  # fmt: skip


def row(better="higher", ratios=(), limits=()):
    size = rows.Size(0, 1, 2)
    return rows.Row(
        name="speed", unit="steps/s", better=better, size=size, quick=size, sides=(),
        ratios=ratios, limits=limits,
    )  # fmt: skip


def test_percentile_is_linear_between_neighbours():
    # places 0, 1, 2, 3 hold 10, 20, 30, 40; 10 % of 3 is place 0.3: 10 + 0.3 * (20 - 10) = 13
    # (the nearest rank would say 10)
    assert summary.percentile([40, 10, 30, 20], 10) == pytest.approx(13)
    assert summary.percentile([40, 10, 30, 20], 100) == 40
    assert summary.percentile([7], 90) == 7
    with pytest.raises(ValueError, match="no values"):
        summary.percentile([], 50)


def test_spread_keeps_median_and_both_tails():
    assert summary.spread([1, 2, 3, 4, 5]) == {
        "median": 3,
        "p10": pytest.approx(1.4),
        "p90": pytest.approx(4.6),
        "count": 5,
    }


def test_median_of_paired_ratios_is_not_the_ratio_of_medians():
    # The machine is three times slower in the second turn, for both sides.
    #   pairs:    100/50 = 2, 100/50 = 2, 40/10 = 4, 30/10 = 3   median (2 + 3) / 2 = 2.5
    #   medians:  70 / 30 = 2.33 is what unpaired figures would say
    ours = {0: [100, 100], 1: [40, 30]}
    theirs = {0: [50, 50], 1: [10, 10]}
    ratios = summary.paired_ratios(ours, theirs, "higher")
    assert ratios == [2, 2, 4, 3]
    assert summary.spread(ratios)["median"] == 2.5


def test_where_lower_is_better_the_ratio_is_inverted():
    # 20 ms against 30 ms is 1.5 times better, not 0.67 times
    assert summary.paired_ratios({0: [20.0]}, {0: [30.0]}, "lower") == [1.5]


def test_only_turns_that_both_sides_finished_are_paired():
    assert summary.paired_ratios({0: [4], 2: [9]}, {0: [2], 1: [1]}, "higher") == [2]
    assert summary.paired_ratios({0: [4]}, {}, "higher") == []


def test_a_single_figure_stands_against_every_window():
    assert summary.paired_ratios({0: [100]}, {0: [10, 20]}, "higher") == [10, 5]


@pytest.mark.parametrize("better, best", [("higher", "b"), ("lower", "a")])
def test_best_label_follows_the_direction(better, best):
    figures = {"a": {0: [1, 1, 9]}, "b": {0: [2, 2, 2]}, "c": {}}
    assert summary.best_label(figures, ("a", "b", "c", "gone"), better) == best
    assert summary.best_label(figures, ("c", "gone"), better) is None


def test_ratio_takes_the_best_of_each_side_and_tells_whether_the_aim_is_met():
    # the better peer is b: 12 / 10 = 1.2, exactly at the aim; against a it would be 12 / 6 = 2
    figures = {"ours": {0: [12.0]}, "a": {0: [6.0]}, "b": {0: [10.0]}}
    found = summary.ratio_record(rows.Ratio(("ours",), ("a", "b"), 1.2), figures, "higher")
    assert (found["baseline"], found["median"], found["met"]) == ("b", 1.2, True)
    missed = summary.ratio_record(rows.Ratio(("ours",), ("a", "b"), 1.3), figures, "higher")
    assert missed["met"] is False
    assert summary.ratio_record(rows.Ratio(("ours",), ("a",)), figures, "higher")["met"] is None
    assert summary.ratio_record(rows.Ratio(("ours",), ("gone",)), figures, "higher") is None


@pytest.mark.parametrize("strictly, met", [(False, True), (True, False)])
def test_a_figure_exactly_at_its_limit(strictly, met):
    limit = rows.Limit("ours", 105, strictly)
    assert summary.limit_record(limit, {"ours": {0: [105]}})["met"] is met


def test_record_has_the_keys_of_a_benchmark_line_and_is_json():
    reports = {
        "ours": {0: report([10.0, 30.0], 2.0), 1: report([20.0, 40.0], 4.0, threads=2)},
        "peer": {0: report([5.0, 5.0], None, "torch"), 1: report([5.0, 5.0], None, "torch")},
    }
    errors = {"other": "no module named other"}
    record = summary.row_record(
        row(ratios=(rows.Ratio(("ours",), ("peer",), 6.0),)), reports, errors, HEADER
    )
    assert record.keys() == {"name", "unit", "sides", "ratios", "limits", "errors", *HEADER}
    ours = record["sides"]["ours"]
    assert ours.keys() >= {"device", "backend", "version", "compile_s", "median", "p10", "p90"}
    assert (ours["backend"], ours["version"], ours["threads"]) == ("jax", "1.0", 2)
    assert (ours["compile_s"], ours["median"], ours["count"]) == (3.0, 25.0, 4)
    assert record["sides"]["peer"]["compile_s"] is None
    # pairs 2, 6, 4, 8: median 5, under the aim of 6
    assert (record["ratios"][0]["median"], record["ratios"][0]["met"]) == (5.0, False)
    assert json.loads(json.dumps(record)) == record


def test_table_has_the_aim_beside_each_ratio_and_names_what_failed():
    reports = {"ours": {0: report([5_000.0])}, "peer": {0: report([500.0], None, "torch")}}
    ratios = (rows.Ratio(("ours",), ("peer",), 6.0), rows.Ratio(("ours",), ("peer",)))
    limits = (rows.Limit("ours", 100),)
    errors = {"other": "no module named other\nwith a trace"}
    record = summary.row_record(row(ratios=ratios, limits=limits), reports, errors, HEADER)
    lines = summary.table([record]).splitlines()
    assert len(lines) == 6
    assert lines[0].split()[:2] == ["row", "sides"]
    aimed, plain, limited, failed = lines[2:]
    assert "5,000 / 500 steps/s" in aimed
    assert aimed.split("10.00x")[1].split() == ["[10.00,", "10.00]", ">=", "6x", "met"]
    assert plain.endswith("-")
    assert limited.endswith("<= 100  MISSED")
    assert failed.endswith("FAILED")
    assert "no module named other" in failed


@pytest.mark.parametrize(
    "value, text", [(None, "-"), (0.0317, "0.0317"), (5.43, "5.43"), (4711.6, "4,712")]
)
def test_numbers_are_short(value, text):
    assert summary.number(value) == text


def test_step_clock_times_only_whole_windows_after_the_warm_up(monkeypatch):
    # A step takes 1 s, but the first one compiles: 8 s. The second does not learn yet: 0.5 s.
    now = [0.0]
    monkeypatch.setattr(side.time, "perf_counter", lambda: now[0])
    clock = side.StepClock(warmup=3, window=2, windows=2)
    assert clock.total_steps == 7
    for step in range(7):
        now[0] += {0: 8.0, 1: 0.5}.get(step, 1.0)
        clock.step()
    assert clock.steps_per_s() == [1.0, 1.0]
    assert clock.ms_per_step() == [1000.0, 1000.0]
    # 8 - 1 = 7; all of the warm-up less three steps at 1 s would be 6.5
    assert clock.compile_s() == pytest.approx(7.0)


def test_side_report_is_one_json_line(capsys):
    side.report([1.5], "cpu", {"torch": "2.0"}, threads=1)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found.keys() == {"values", "compile_s", "device", "versions", "threads"}
    assert next(iter(found["versions"])) == "torch"


def test_every_row_compares_sides_that_it_has_and_scripts_that_exist():
    for entry in rows.ROWS:
        labels = {one.label for one in entry.sides}
        assert len(labels) == len(entry.sides)
        for ratio in entry.ratios:
            assert labels.issuperset(ratio.candidates + ratio.baselines)
        assert labels.issuperset(limit.label for limit in entry.limits)
        for one in entry.sides:
            assert (BENCHMARKS / one.script).is_file()
    assert len({entry.name for entry in rows.ROWS}) == len(rows.ROWS)
