"""The interpreters of the sides: the project's own, and one environment a peer under .bench/."""

import hashlib
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent / ".bench"


@dataclass(frozen=True)
class Peer:
    """A requirements file in peers/, and the minor versions of Python 3 that can hold it."""

    requirements: str
    minors: tuple[int, ...]


PEERS = {
    "sb3": Peer("requirements-sb3.txt", (11, 12, 13, 10)),
    "keras-rl2": Peer("requirements-keras-rl2.txt", (11, 10, 9, 8)),
}


class EnvironmentMissing(RuntimeError):
    """A peer's environment can be neither found nor built; the message says what to do."""


def base_python(peer):
    """The running interpreter where it fits the peer, else the first that does on the PATH."""
    if sys.version_info.minor in peer.minors:
        return sys.executable
    for minor in peer.minors:
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    wanted = ", ".join(f"3.{minor}" for minor in sorted(peer.minors))
    raise EnvironmentMissing(
        f"{peer.requirements} needs one of Python {wanted}, and none is on the PATH. Install one, "
        f"or name an interpreter that has the packages: --python NAME=/path/to/python"
    )


def stamp_text(peer, pip_args):
    """What the environment was built from; it is built anew when this changes."""
    text = (HERE / "peers" / peer.requirements).read_text() + pip_args
    return hashlib.sha256(text.encode()).hexdigest()


def build(name, pip_args=""):
    """The interpreter of peer `name`, its environment built if it is not there yet.

    Args:
        name: a key of PEERS.
        pip_args: more arguments for `pip install`, such as another package index.

    Raises:
        EnvironmentMissing: no fitting Python, or pip failed; its last lines are in the message.
    """
    peer, folder = PEERS[name], BENCH / name
    python, stamp = folder / "bin" / "python", folder / ".built"
    wanted = stamp_text(peer, pip_args)
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    print(f"building the environment of {name} in {folder}", file=sys.stderr, flush=True)
    stamp.unlink(missing_ok=True)  # it is whole only with its stamp, which is written last
    requirements = HERE / "peers" / peer.requirements
    run_or_raise(name, [base_python(peer), "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
    run_or_raise(name, [*pip, *shlex.split(pip_args)])
    stamp.write_text(wanted)
    return str(python)


def run_or_raise(name, command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise EnvironmentMissing(
            f"the environment of {name} could not be built: {shlex.join(command)}\n"
            + done.stdout[-2000:]
        )
