"""From timed windows to medians, paired ratios, the JSON record and the table. Pure functions."""

import math
import statistics


def percentile(values, q):
    """The q-th percentile (0..100) of a non-empty list, linear between neighbours."""
    if not values:
        raise ValueError("percentile of no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values):
    """{median, p10, p90, count} of a non-empty list."""
    return {
        "median": statistics.median(values),
        "p10": percentile(values, 10),
        "p90": percentile(values, 90),
        "count": len(values),
    }


def paired_ratios(candidate, baseline, better):
    """How many times better the candidate is, one ratio a pair of windows.

        ratio[r, w] = candidate[r][w] / baseline[r][w]   (inverted where lower is better)

    Args:
        candidate: {repeat: [figure a window]}; a repeat that failed is absent.
        baseline: the same for the other side. Where one side has a single window a repeat, it
            stands against each window of the other.
        better: "higher" or "lower".

    Returns:
        list of ratios, above 1 where the candidate is better; empty where no repeat has both.
    """
    ratios = []
    for repeat in sorted(candidate.keys() & baseline.keys()):
        ours, theirs = candidate[repeat], baseline[repeat]
        count = max(len(ours), len(theirs))
        ours = ours * count if len(ours) == 1 else ours
        theirs = theirs * count if len(theirs) == 1 else theirs
        pairs = zip(ours, theirs) if better == "higher" else zip(theirs, ours)
        ratios.extend(a / b for a, b in pairs)
    return ratios


def flat(figures):
    """All windows of all repeats, in order."""
    return [value for repeat in sorted(figures) for value in figures[repeat]]


def best_label(figures_by_side, labels, better):
    """The label with the best median among those that have figures, or None."""
    medians = {
        label: statistics.median(flat(figures_by_side[label]))
        for label in labels
        if flat(figures_by_side.get(label, {}))
    }
    if not medians:
        return None
    return (max if better == "higher" else min)(medians, key=medians.get)


def ratio_record(ratio, figures_by_side, better):
    """One comparison, best candidate against best baseline, with its aim; None if one is absent."""
    candidate = best_label(figures_by_side, ratio.candidates, better)
    baseline = best_label(figures_by_side, ratio.baselines, better)
    if candidate is None or baseline is None:
        return None
    values = paired_ratios(figures_by_side[candidate], figures_by_side[baseline], better)
    if not values:
        return None
    found = spread(values)
    met = None if ratio.at_least is None else found["median"] >= ratio.at_least
    return {
        "candidate": candidate,
        "baseline": baseline,
        **found,
        "aim": ratio.at_least,
        "met": met,
    }


def limit_record(limit, figures_by_side):
    """One side's median against an upper bound in the row's unit; None if it has no figures."""
    values = flat(figures_by_side.get(limit.label, {}))
    if not values:
        return None
    median = statistics.median(values)
    met = median < limit.at_most if limit.strictly else median <= limit.at_most
    aim = f"{'<' if limit.strictly else '<='} {number(limit.at_most)}"
    return {"side": limit.label, "median": median, "aim": aim, "met": met}


def side_record(reports):
    """What one side's repeats come to.

    Args:
        reports: {repeat: the parsed line of that process}, not empty.
    """
    last = reports[max(reports)]
    compile_s = [report["compile_s"] for report in reports.values()]
    compile_s = [seconds for seconds in compile_s if seconds is not None]
    backend = next(iter(last["versions"]))
    record = {
        "device": last["device"],
        "backend": backend,
        "version": last["versions"][backend],
        "versions": last["versions"],
        "compile_s": statistics.median(compile_s) if compile_s else None,
        **spread(flat({repeat: report["values"] for repeat, report in reports.items()})),
    }
    for key in sorted(last.keys() - {"values", "compile_s", "device", "versions"}):
        record[key] = last[key]
    return record


def row_record(row, reports_by_side, errors, header):
    """The JSON record of a row.

    Args:
        row: rows.Row.
        reports_by_side: {label: {repeat: report}}; sides that never reported are absent.
        errors: {label: text} of the sides that failed.
        header: commit, device, command and whatever else is the same for all rows.
    """
    figures = {
        label: {repeat: report["values"] for repeat, report in reports.items()}
        for label, reports in reports_by_side.items()
    }
    ratios = [ratio_record(ratio, figures, row.better) for ratio in row.ratios]
    limits = [limit_record(limit, figures) for limit in row.limits]
    return {
        "name": row.name,
        "unit": row.unit,
        **header,
        "sides": {label: side_record(reports) for label, reports in reports_by_side.items()},
        "ratios": [found for found in ratios if found is not None],
        "limits": [found for found in limits if found is not None],
        "errors": errors,
    }


def number(value):
    """Three or four significant digits, thousands grouped: 4,712 or 0.318."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def verdict(met):
    return {None: "", True: "met", False: "MISSED"}[met]


def lines_of(record):
    """(row, figure, spread, aim, verdict) for each ratio, limit and error of a record."""
    name = record["name"]
    for ratio in record["ratios"]:
        sides = f"{ratio['candidate']} / {ratio['baseline']}"
        theirs, ours = record["sides"][ratio["baseline"]], record["sides"][ratio["candidate"]]
        figures = f"{number(ours['median'])} / {number(theirs['median'])} {record['unit']}"
        times = f"{ratio['median']:.2f}x [{ratio['p10']:.2f}, {ratio['p90']:.2f}]"
        aim = "-" if ratio["aim"] is None else f">= {ratio['aim']:g}x"
        yield name, sides, figures, times, aim, verdict(ratio["met"])
    for limit in record["limits"]:
        figure = f"{number(limit['median'])} {record['unit']}"
        yield name, limit["side"], figure, "", limit["aim"], verdict(limit["met"])
    for label, text in record["errors"].items():
        yield name, label, " ".join(text.split())[:60], "", "", "FAILED"


def table(records):
    """The records as aligned text, one line a comparison, with its aim beside it."""
    head = ("row", "sides", "medians", "paired ratio [p10, p90]", "aim", "")
    lines = [head, *(line for record in records for line in lines_of(record))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in lines]
    texts.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text.rstrip() for text in texts)
