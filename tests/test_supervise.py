"""`kerasrl-gpu supervise`: real children, none of which loads Keras, and rules by hand."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.cli import main
from kerasrl_gpu.commands import running
from kerasrl_gpu.commands.supervise import Rules, back_off_s, short_of, supervise, wait_for_memory
from kerasrl_gpu.errors import MemoryExit
from kerasrl_gpu.probes import Reading

PATIENCE_S = 20
BARE = [sys.executable, "-I", "-S", "-c"]
AT_ONCE = Rules(delay_s=0)

# Says its own number and its child's, then waits; what it does on signals stands in front.
PARENT = """
import os, signal, subprocess, sys, time
below = subprocess.Popen([sys.executable, "-I", "-S", "-c", {below!r}], stdout=subprocess.PIPE)
below.stdout.readline()
print(os.getpid(), below.pid, flush=True)
time.sleep(60)
"""
STAYS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(60)
"""
ENDS = "import time; print(flush=True); time.sleep(60)"


def sh(text):
    return ["sh", "-c", text]


def no_limits():
    return []


def eventually(true, at_most_s=PATIENCE_S):
    """Whether it becomes true within that time."""
    until_s = time.monotonic() + at_most_s
    while not true() and time.monotonic() < until_s:
        time.sleep(0.01)
    return true()


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def started():
    """Starts supervisors, each with a session of its own; ends them and what they said they ran."""
    supervisors, runs = [], []

    def start(code, *options, **arguments):
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "kerasrl_gpu", "supervise", *options, "--", *BARE, code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **arguments,
        )
        supervisors.append(supervisor)
        said = [int(word) for word in supervisor.stdout.readline().split()]
        with contextlib.suppress(psutil.NoSuchProcess):
            runs.extend(psutil.Process(pid) for pid in said)
        return supervisor, *said

    yield start
    for supervisor in supervisors:
        supervisor.kill()
    for run in runs:
        with contextlib.suppress(psutil.NoSuchProcess):
            run.kill()  # psutil knows a number that was given to another process since
    for supervisor in supervisors:
        supervisor.communicate()


@pytest.mark.parametrize("status", [0, 1, 74, 76, 255])
def test_an_exit_status_passes_through(status, capsys):
    assert main(["supervise", "--", *sh(f"exit {status}")]) == status
    assert capsys.readouterr().err == f"kerasrl-gpu supervise: status {status} is passed through\n"


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_death_by_signal_n_is_128_and_n(name):
    assert main(["supervise", "--", *sh(f"kill -{name} $$")]) == 128 + signal.Signals[f"SIG{name}"]


def test_status_75_starts_it_again_and_says_how_often(tmp_path, capsys):
    file = tmp_path / "restarts"
    code = f'echo $KERASRL_GPU_RESTARTS >> {file}; test "$KERASRL_GPU_RESTARTS" = 2 && exit 7'
    assert supervise(sh(f"{code}; exit 75"), AT_ONCE, no_limits) == 7
    assert file.read_text().split() == ["0", "1", "2"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "status 75 after 0 s; restart 1 in 0 s",
        "status 75 after 0 s; restart 2 in 0 s",
        "status 7 is passed through",
    ]


@pytest.mark.parametrize("most", [0, 2])
def test_the_last_restart_allowed_passes_75_through(most, tmp_path, capsys):
    file = tmp_path / "starts"
    rules = AT_ONCE._replace(max_restarts=most)
    assert supervise(sh(f"echo >> {file}; exit 75"), rules, no_limits) == 75
    assert len(file.read_text()) == 1 + most
    assert f"--max-restarts {most} is reached" in capsys.readouterr().err


def test_a_run_that_raises_memory_exit_ends_with_75():
    code = """
from kerasrl_gpu.errors import MemoryExit
try:
    raise MemoryExit("host memory is at 97 %")
except Exception:
    pass
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (75, "", "")
    assert str(MemoryExit("host memory is at 97 %")) == "host memory is at 97 %"


def test_back_off_doubles_up_to_five_minutes_and_begins_anew_after_a_long_run():
    waits, wait_s = [], None
    for lasted_s in [0] * 11 + [599, 600, 0]:
        wait_s = back_off_s(wait_s, lasted_s, 1.0)
        waits.append(wait_s)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 1, 2]
    assert back_off_s(400.0, 0, 400.0) == 400.0  # a first wait above the bound stays what it is


@given(st.lists(st.floats(0, 599)), st.floats(0, 1000))
def test_a_wait_is_never_shorter_than_the_one_before(lasted, first_s):
    waits = [None]
    for lasted_s in lasted:
        waits.append(back_off_s(waits[-1], lasted_s, first_s))
    assert waits[1:] == sorted(waits[1:])
    assert all(first_s <= wait_s <= max(first_s, 300) for wait_s in waits[1:])


def reading(used, limit=100, name="process"):
    return Reading(name, used, limit, "a test")


def test_what_is_exactly_at_the_share_is_short_and_what_is_unknown_is_not():
    unknown = Reading("card", None, None, "a test", missing="There is none.")
    assert short_of([reading(79), unknown], 0.8) is None
    assert short_of([reading(80), unknown], 0.8) == reading(80)
    assert short_of([reading(85), reading(90, name="card")], 0.8).name == "card"


class Memory:
    """Readings one after the other, the last one for ever, and a clock that a pause moves."""

    def __init__(self, *used):
        self.used, self.now_s, self.pauses = list(used), 100.0, []

    def read(self):
        return [reading(self.used.pop(0) if len(self.used) > 1 else self.used[0])]

    def pause(self, seconds):
        self.pauses.append(seconds)
        self.now_s += seconds

    def wait(self, at_most_s):
        return wait_for_memory(self.read, 0.8, at_most_s, self.pause, lambda: self.now_s)


def test_a_restart_waits_while_memory_is_short(capsys):
    memory = Memory(95, 81, 79)
    assert memory.wait(at_most_s=3600)
    assert memory.pauses == [5, 5]
    said = capsys.readouterr().err
    assert "process: 95 B of 100 B in use, 95% (a test); waiting until it is below 80%" in said
    assert "memory allows a restart after 10 s" in said
    assert len(said.splitlines()) == 2


def test_memory_that_stays_short_is_given_up(capsys):
    memory = Memory(95)
    assert not memory.wait(at_most_s=12)
    assert memory.pauses == [5, 5, 2]
    assert "after 12 s still; status 75 is passed through" in capsys.readouterr().err


def test_memory_that_is_there_is_not_spoken_of(capsys):
    memory = Memory(10)
    assert memory.wait(at_most_s=0)
    assert (memory.pauses, capsys.readouterr().err) == ([], "")


def test_a_supervisor_asks_for_memory_before_each_restart_and_only_then(tmp_path):
    asked, file = [], tmp_path / "starts"

    def read():
        asked.append(len(file.read_text()))
        return [reading(79 if len(asked) == 1 else 80)]

    rules = AT_ONCE._replace(wait_at_most_s=0)
    assert supervise(sh(f"echo >> {file}; exit 75"), rules, read) == 75
    assert asked == [1, 2]


def test_sigterm_gives_the_run_its_time_and_ends_what_it_leaves(started):
    own = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"
    supervisor, run, below = started(own + PARENT.format(below=ENDS))
    supervisor.terminate()
    said = supervisor.communicate(timeout=PATIENCE_S)[1]
    assert supervisor.returncode == 5
    assert is_gone(run)
    assert is_gone(below)
    assert "SIGTERM passed on; at most 30 s to end" in said
    assert "it left processes behind; SIGTERM to them" in said


def test_what_does_not_heed_sigterm_is_killed_with_all_below(started):
    own = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    supervisor, run, below = started(own + PARENT.format(below=STAYS), "--grace", "0.2")
    supervisor.terminate()
    said = supervisor.communicate(timeout=PATIENCE_S)[1]
    assert supervisor.returncode == 128 + signal.SIGKILL
    assert is_gone(run)
    assert is_gone(below)
    assert "it did not end within 0.2 s; killed" in said
    assert "left processes" not in said  # the kill was all of theirs


def test_what_a_run_leaves_is_ended_before_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_ALONE_S", 0.05)
    monkeypatch.setattr(running, "_ASKED_S", 0.05)
    file = tmp_path / "pids"
    code = f"import subprocess; p = subprocess.Popen({[*BARE, STAYS]!r}, stdout=subprocess.PIPE)\n"
    code += (
        f"p.stdout.readline(); print(p.pid, file=open({str(file)!r}, 'a')); raise SystemExit(75)"
    )
    assert supervise([*BARE, code], AT_ONCE._replace(max_restarts=1), no_limits) == 75
    pids = [int(pid) for pid in file.read_text().split()]
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel is asked for it")
def test_what_a_run_leaves_becomes_the_supervisors(tmp_path):
    # Process 1 of a container may never take note that an orphan has ended: it would count on.
    file = tmp_path / "parent"
    code = f"""
import os, time
run = os.getpid()
if os.fork() == 0:
    while os.getppid() == run:
        time.sleep(0.001)
    print(os.getppid(), file=open({str(file)!r}, "w"))
"""
    assert supervise([*BARE, code], AT_ONCE, no_limits) == 0
    assert int(file.read_text()) == os.getpid()


def watcher_of(supervisor):
    children = psutil.Process(supervisor.pid).children()
    (found,) = [child for child in children if running.watcher.__file__ in child.cmdline()]
    return found


def test_a_supervisor_that_is_killed_leaves_nobody(started):
    supervisor, run, below = started(PARENT.format(below=STAYS))
    watcher = watcher_of(supervisor)
    supervisor.kill()
    assert eventually(lambda: is_gone(run))
    assert eventually(lambda: is_gone(below))
    assert eventually(lambda: is_gone(watcher.pid))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel is asked for it")
def test_the_kernel_ends_the_run_where_the_watcher_is_killed_too(started):
    supervisor, run, _ = started(PARENT.format(below=STAYS))
    watcher_of(supervisor).kill()
    supervisor.kill()
    assert eventually(lambda: is_gone(run))


@pytest.mark.parametrize("name", ["INT", "USR1"])
def test_a_terminals_signal_reaches_the_run_once(name, started):
    # The terminal signals every process of its group: were the run in it, it would count two.
    code = f"""
import os, signal, sys, time
seen = []
signal.signal(signal.SIG{name}, lambda *_: seen.append(1))
print(os.getpid(), flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(10 + len(seen))
"""
    supervisor, run = started(code)
    os.killpg(supervisor.pid, signal.Signals[f"SIG{name}"])
    assert supervisor.wait(PATIENCE_S) == 11
    assert is_gone(run)


def test_a_run_that_was_asked_to_end_is_not_started_again(started):
    code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print(os.getpid(), flush=True)
time.sleep(60)
"""
    supervisor, _ = started(code)
    supervisor.terminate()
    said = supervisor.communicate(timeout=PATIENCE_S)[1]
    assert supervisor.returncode == 75
    assert "status 75 is passed through: the run was asked to end" in said


def test_a_signal_between_two_runs_ends_the_supervisor(started):
    (supervisor,) = started("print(flush=True); raise SystemExit(75)", "--delay", "60")
    assert "restart 1 in 60 s" in supervisor.stderr.readline()
    supervisor.send_signal(signal.SIGINT)
    assert "SIGINT between two runs" in supervisor.communicate(timeout=PATIENCE_S)[1]
    assert supervisor.returncode == 128 + signal.SIGINT


def test_a_signal_that_is_ignored_stays_so(started):
    code = """
import os, signal, sys, time
ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
signal.signal(signal.SIGTERM, lambda *_: sys.exit(20 + ignored))
print(os.getpid(), flush=True)
time.sleep(60)
"""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        supervisor, _ = started(code)
    finally:
        signal.signal(signal.SIGHUP, before)
    supervisor.send_signal(signal.SIGHUP)
    supervisor.terminate()
    said = supervisor.communicate(timeout=PATIENCE_S)[1]
    assert supervisor.returncode == 21
    assert "SIGHUP" not in said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_command_finds_what_a_shell_would_give_it():
    masks = "grep -E 'Sig(Ign|Blk)' /proc/self/status"
    alone = subprocess.run(sh(masks), capture_output=True, text=True).stdout.split()
    script = f"cat; echo to stderr >&2; {masks}"
    words = [sys.executable, "-m", "kerasrl_gpu", "supervise", "--", *sh(script)]
    ended = subprocess.run(words, input="through\n", capture_output=True, text=True)
    assert ended.stdout.split() == ["through", *alone]
    assert "to stderr\n" in ended.stderr


def test_the_handlers_of_before_are_back():
    numbers = running.STOPS | running.PASSED | running.ENDED
    before = [signal.getsignal(number) for number in numbers]
    assert supervise(["true"], AT_ONCE, no_limits) == 0
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_supervisor_loads_neither_a_backend_nor_numpy():
    code = """
import sys
from kerasrl_gpu.cli import main
assert main(["supervise", "--delay", "0", "--max-restarts", "1", "--", "sh", "-c", "exit 75"]) == 75
loaded = {"keras", "jax", "tensorflow", "numpy", "rl"} & set(sys.modules)
assert not loaded, loaded
"""
    words = ["--memory-below", "100%"]
    code = code.replace('"--delay"', ", ".join(map(repr, words)) + ', "--delay"')
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "words, sentence",
    [
        ([], "no command; write it behind --: supervise -- python train.py"),
        (["--"], "no command; write it behind --"),
        (["python", "train.py"], "unrecognized: python train.py; the command to run goes behind"),
        (["--", "no-such-command"], "'no-such-command' is no command that can be run."),
        (["--", "train.py"], "'train.py' is no command that can be run; pass: -- python train.py"),
        (["--max-restarts", "-1", "--", "true"], "--max-restarts=-1; pass a whole number of at l"),
        (["--delay", "-1", "--", "true"], "--delay=-1.0; pass seconds, 0 to 86400"),
        (["--grace", "nan", "--", "true"], "--grace=nan; pass seconds, 0 to 86400"),
        (["--wait-at-most", "-1", "--", "true"], "--wait-at-most=-1.0; pass seconds from 0 on"),
        (["--memory-below", "0%", "--", "true"], "'0%'; pass a share above 0% up to 100%"),
        (["--memory-below", "6GiB", "--", "true"], "'6GiB'; pass a share above 0% up to 100%"),
    ],
)
def test_what_cannot_be_done_gets_a_sentence(words, sentence, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["supervise", *words])
    assert raised.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_no_program_gets_a_sentence(tmp_path, capfd):
    program = tmp_path / "program"
    program.write_text("no program")
    program.chmod(0o755)
    assert main(["supervise", "--", str(program)]) == 126
    assert f"{program} does not start: Exec format error" in capfd.readouterr().err
