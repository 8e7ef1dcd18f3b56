"""Measure kerasrl_gpu beside its peers: one JSON line a row, then a table with the aims.

    python benchmarks/run.py                                all rows, at least three turns each
    python benchmarks/run.py --quick --rows dqn_cartpole    a smoke run of one row

Each side is a process with an interpreter of its own. The sides of a row take turns (A B C, A B C,
...), so that a machine that slows down slows them all; ratios are made of figures of one turn.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

import environments
import summary
from rows import ROWS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
QUICK_FRAMES = 20_000
PYTHON_HELP = f"interpreter to use for one of: project, {', '.join(environments.PEERS)}"


class SideFailed(RuntimeError):
    """A side's process ended without its line; the message is the last thing that it said."""


def arguments(argv=None):
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", nargs="+", choices=names, default=names, metavar="NAME", help="--list has them")
    add("--list", action="store_true", help="print the rows and their sides, and end")
    add("--sides", nargs="+", metavar="LABEL", help='only these, such as "ours jax" sb3')
    add("--repeats", type=int, help="turns of all sides (default 3, with --quick 1)")
    add("--quick", action="store_true", help="short windows: shows that it runs, not how fast")
    add("--frames", type=int, help="rows of sample_32_atari (default 1,000,000: 7 GB)")
    add("--python", action="append", default=[], metavar="NAME=PATH", help=PYTHON_HELP)
    add("--pip-args", default="", help="more arguments for pip when an environment is built")
    add("--timeout", type=float, default=1_200, help="seconds for one process (default 1,200)")
    add("--out", type=Path, help="JSON lines go there too (default results/TIME-COMMIT.jsonl)")
    return parser.parse_args(argv)


def commit():
    """Short hash of HEAD, with "-dirty" where the tree differs; "unknown" outside git."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


def host():
    """The machine in words: processor, cores, system."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0].split(":", 1)[1].strip() if models else name
    return f"{name}, {os.cpu_count()} cores, {platform.system()}"


def load():
    """Processes that already ran when the benchmark started (a 1-minute mean), or None."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def command_of(side, size, frames, python):
    """The side's command line; every script takes the three sizes."""
    given = [argument.format(frames=frames) for argument in side.arguments]
    sizes = ["--warmup", size.warmup, "--window", size.window, "--windows", size.windows]
    return [python, str(HERE / side.script), *given, *map(str, sizes)]


def bind_to_one_core():
    """Let this process run on one core only, where the system knows such a thing."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def run_side(side, command, timeout_s):
    """One process of a side: its report.

    Raises:
        SideFailed: it failed, ran too long or printed no report.
    """
    env = dict(os.environ)
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    env.pop("KERAS_BACKEND", None)
    if side.backend:
        env["KERAS_BACKEND"] = side.backend
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            preexec_fn=bind_to_one_core if side.one_core else None,
        )
    except subprocess.TimeoutExpired:
        raise SideFailed(f"no result within {timeout_s:g} s; --timeout gives it more") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise SideFailed(said[-1] if said else f"exit status {done.returncode}")
    return json.loads(lines[-1])


class Interpreters:
    """Interpreter of an environment by name; peers' are built when first asked for."""

    def __init__(self, given, pip_args):
        self.pip_args = pip_args
        self.known = {"project": sys.executable, **dict(item.split("=", 1) for item in given)}
        self.failed = {}

    def __getitem__(self, name):
        if name in self.failed:
            raise self.failed[name]
        if name not in self.known:
            try:
                self.known[name] = environments.build(name, self.pip_args)
            except environments.EnvironmentMissing as error:
                self.failed[name] = error
                raise
        return self.known[name]


def measure(row, args, interpreters):
    """All turns of one row: ({label: {repeat: report}}, {label: error})."""
    size = row.quick if args.quick else row.size
    repeats = row.repeats or args.repeats or (1 if args.quick else 3)
    frames = args.frames or (QUICK_FRAMES if args.quick else 1_000_000)
    sides = [side for side in row.sides if args.sides is None or side.label in args.sides]
    reports, errors = {}, {}
    for repeat in range(repeats):
        for side in sides:
            if side.label in errors:
                continue  # a side that failed once is not tried again
            started_s = time.perf_counter()
            try:
                command = command_of(side, size, frames, interpreters[side.environment])
                report = run_side(side, command, args.timeout)
            except (SideFailed, environments.EnvironmentMissing) as error:
                errors[side.label] = str(error)
                print(f"  {row.name} {side.label}: {error}", file=sys.stderr, flush=True)
                continue
            reports.setdefault(side.label, {})[repeat] = report
            middle = summary.number(summary.spread(report["values"])["median"])
            took = f"{time.perf_counter() - started_s:.0f} s"
            print(
                f"  {row.name} turn {repeat + 1}/{repeats} {side.label}: {middle} {row.unit}"
                f" ({took})",
                file=sys.stderr,
                flush=True,
            )
    return reports, errors, repeats


def command_for(row, args):
    """The command that prints this row's line."""
    words = ["python", "benchmarks/run.py", "--rows", row.name]
    words += ["--quick"] if args.quick else []
    for option in ("sides", "repeats", "frames"):
        value = getattr(args, option)
        if value is not None:
            words += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def main(argv=None):
    args = arguments(argv)
    if args.list:
        for row in ROWS:
            print(f"{row.name} ({row.unit}): {', '.join(side.label for side in row.sides)}")
        return 0
    interpreters = Interpreters(args.python, args.pip_args)
    head = {"commit": commit(), "device": host(), "load": load(), "quick": args.quick}
    out = args.out
    if out is None and not args.quick:
        out = HERE / "results" / f"{time.strftime('%Y%m%dT%H%M%S')}-{head['commit']}.jsonl"
    records = []
    for row in (row for row in ROWS if row.name in args.rows):
        reports, errors, repeats = measure(row, args, interpreters)
        header = {**head, "repeats": repeats, "command": command_for(row, args)}
        records.append(summary.row_record(row, reports, errors, header))
        line = json.dumps(records[-1])
        print(line, flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a") as file:
                file.write(line + "\n")
    print(f"\n{head['device']}, commit {head['commit']}" + (", quick" if args.quick else ""))
    print(summary.table(records))
    if (head["load"] or 0) > 0.5:
        print(f"\nThe machine was busy at the start (load {head['load']}): run this again alone.")
    return 1 if any(record["errors"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
