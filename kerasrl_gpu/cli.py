"""Commands around a run: `kerasrl-gpu` or `python -m kerasrl_gpu`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys


def main(arguments=None) -> int:
    """Run one command; returns the exit status, 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="kerasrl-gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
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
    options = parser.parse_args(arguments)
    if options.modules:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, for the command too
    for module in options.modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            parser.error(f"--import {module}: {error}")
    from kerasrl_gpu.resume.verifying import verify as run

    return 0 if run(options.checkpoint) else 1
