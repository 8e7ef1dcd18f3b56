"""Commands around a run: `kerasrl-gpu` or `python -m kerasrl_gpu`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

_HINTS = {"verify": "", "supervise": "; the command to run goes behind --"}


def main(arguments=None) -> int:
    """Run one command; returns the exit status, 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="kerasrl-gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_add_verify, _add_plan, _add_tune, _add_doctor, _add_supervise):
        add(commands)
    own, script = _split(sys.argv[1:] if arguments is None else arguments)
    options, unknown = parser.parse_known_args(own)
    if unknown:
        hint = _HINTS.get(options.command, "; a script's own options go behind --")
        parser.error(f"unrecognized: {' '.join(unknown)}{hint}")
    options.script_arguments = script
    return options.run(parser, options)


def _split(arguments: list) -> tuple:
    """(the command's own arguments, those behind --)."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _add_verify(commands):
    verify = commands.add_parser(
        "verify",
        help="check a checkpoint's digests, load it, and compare what its networks say",
    )
    verify.add_argument("checkpoint", help="a run directory (the newest one) or one checkpoint")
    verify.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that registers custom layers with Keras; may be given several times",
    )
    verify.set_defaults(run=_verify)


def _add_plan(commands):
    plan = commands.add_parser("plan", help="print the bytes that a run takes, before it starts")
    _add_target(plan)
    plan.add_argument("--micro-batch", type=int, help="transitions computed at a time")
    plan.add_argument("--report", action="store_true", help="also parameters and FLOPs by layer")
    plan.set_defaults(run=_plan)


def _add_tune(commands):
    tune = commands.add_parser(
        "tune", help="measure micro-batches and fused updates, print the curve and the best"
    )
    _add_target(tune)
    tune.add_argument("--free", action="store_true", help="the batch itself may change")
    tune.add_argument("--steps", type=int, default=500, help="environment steps first (500)")
    tune.add_argument("--seconds", type=float, default=12.0, help="for timing (12)")
    tune.add_argument("--no-cache", action="store_true", help="measure again, and keep nothing")
    tune.add_argument("--draw", metavar="FILE", help="draw the curve: .png, .svg or .pdf")
    tune.set_defaults(run=_tune)


def _add_doctor(commands):
    doctor = commands.add_parser(
        "doctor", help="say what a run finds on this machine, and how to mend what is wrong"
    )
    doctor.add_argument("--path", default=".", help="where checkpoints would go (.)")
    doctor.add_argument("--limit", default="100_000", help="rows of a pool to price (100,000)")
    doctor.add_argument(
        "--observation", metavar="SHAPE:TYPE", help="what it would store: 84x84:uint8"
    )
    doctor.set_defaults(run=_doctor)


def _add_supervise(commands):
    supervise = commands.add_parser(
        "supervise",
        help="run a training, and start it again when it ends with status 75",
        usage="%(prog)s [options] -- python train.py ...",
        description="Runs the command behind --, and starts it again when it ends with status 75, "
        "as a run does that its memory guard has saved and ended. Any other end is passed through.",
    )
    add = supervise.add_argument
    add("--max-restarts", type=int, metavar="N", help="then status 75 is passed through (no bound)")
    add("--memory-below", default="80%", metavar="SHARE", help="in use for a restart (80%%)")
    add("--wait-at-most", type=float, default=3600.0, metavar="S", help="for memory (3600)")
    add("--delay", type=float, default=1.0, metavar="S", help="the first, doubled up to 300 (1)")
    add("--grace", type=float, default=30.0, metavar="S", help="from a stop to a kill (30)")
    supervise.set_defaults(run=_supervise)


def _add_target(parser):
    add = parser.add_argument
    add("target", help="a script, run up to its first fit, or the id of an environment")
    add("arguments", nargs="*", help="of the script; those with dashes go behind --")
    add("--budget", help="what the run may take: 70%%, 6GiB")
    usual = parser.add_argument_group(
        "the agent for an environment",
        "a DQN where actions are discrete, of convolutions for frames; else a DDPG",
    )
    add = usual.add_argument
    add("--batch-size", help="transitions an update, or auto (DQN 32, DDPG 256)")
    add("--updates", type=int, help="updates every so many steps, in one call (1)")
    add("--limit", help="rows of its pool, or auto (100,000)")
    add("--hidden", type=int, nargs="+", metavar="UNITS", help="dense layers (64 64; 256 256)")


def _verify(parser, options) -> int:
    if options.modules:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, for the command too
    for module in options.modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            parser.error(f"--import {module}: {error}")
    from kerasrl_gpu.resume.verifying import verify

    return 0 if verify(options.checkpoint) else 1


def _plan(parser, options) -> int:
    from kerasrl_gpu.commands.plan import plan

    return _about_target(
        options,
        lambda target: plan(
            target,
            budget=options.budget,
            micro_batch=options.micro_batch,
            report=options.report,
        ),
    )


def _tune(parser, options) -> int:
    from kerasrl_gpu.commands.tune import tune

    return _about_target(
        options,
        lambda target: tune(
            target,
            steps=options.steps,
            free=options.free,
            budget=options.budget,
            seconds=options.seconds,
            cache=not options.no_cache,
            draw=options.draw,
        ),
    )


def _doctor(parser, options) -> int:
    from kerasrl_gpu.commands import doctor
    from kerasrl_gpu.errors import KerasRLError

    try:
        seen = options.observation and doctor.observation(options.observation)
        return 0 if doctor.doctor(options.path, doctor.rows(options.limit), seen) else 1
    except KerasRLError as error:
        print(f"kerasrl-gpu doctor: {error}", file=sys.stderr)
        return 1


def _supervise(parser, options) -> int:
    from kerasrl_gpu.commands.supervise import Rules, supervise
    from kerasrl_gpu.errors import ArgumentError

    rules = Rules(
        options.max_restarts,
        options.memory_below,
        options.wait_at_most,
        options.delay,
        options.grace,
    )
    try:
        return supervise(options.script_arguments, rules)
    except ArgumentError as error:
        parser.error(f"supervise: {error}")


def _about_target(options, command) -> int:
    """Run a command on its target; what was asked for wrongly is a sentence, not a traceback."""
    from kerasrl_gpu.commands import targets
    from kerasrl_gpu.errors import KerasRLError

    try:
        sizes = targets.Sizes(
            targets.count_or_auto("--batch-size", options.batch_size),
            1 if options.updates is None else options.updates,
            targets.count_or_auto("--limit", options.limit),
            tuple(options.hidden) if options.hidden else None,
            options.budget,
        )
        words = [*options.arguments, *options.script_arguments]
        return 1 if command(targets.find(options.target, words, sizes)) is False else 0
    except KerasRLError as error:
        print(f"kerasrl-gpu {options.command}: {error}", file=sys.stderr)
        return 1
