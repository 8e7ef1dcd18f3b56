"""A writer that is killed, at any moment, leaves a checkpoint that is whole.

One child process forks a writer for every kill, so it imports neither pytest nor a backend.
"""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from kerasrl_gpu import checkpoint

KILLS = 200
STAGES = ["begin", "range", "state", "manifest", "commit", "rename", "prune", "done"]
CALLS = ["mkdir", "link", "fsync", "rename", "unlink", "rmdir"]
RANGES, ROWS = 6, 512


def content(number: int, step: int) -> np.ndarray:
    """u8[ROWS, 8]: range 0 changes with every step, range i when the step is i more than 6 n."""
    changed_at = step if number == 0 else step - (step - number) % RANGES
    return np.full((ROWS, 1), changed_at, np.int64).view(np.uint8)


def write(run, step, previous, progress=None):
    ranges = [
        checkpoint.Range(f"r{i}", lambda i=i: content(i, step), i in (0, step % RANGES))
        for i in range(RANGES)
    ]
    state = {"step": step, "weights": np.full(1000, step), "text": "x" * step}
    options = {"manifest": {"step": step}, "state": state, "ranges": ranges, "keep": 2}
    return checkpoint.write(run, step=step, previous=previous, progress=progress, **options)


def check(run) -> checkpoint.Saved:
    """The newest checkpoint, all of it whole and of one and the same step."""
    saved = checkpoint.open_newest(run)
    assert checkpoint.verify(saved.path) == []
    step = saved.state["step"]
    assert saved.path.name.endswith(f"-step-{step}")
    assert saved.manifest["step"] == step
    np.testing.assert_array_equal(saved.state["weights"], np.full(1000, step))
    for i in range(RANGES):
        np.testing.assert_array_equal(saved.rows(f"r{i}"), content(i, step))
    return saved


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work) -> tuple[int, int]:
    """Start `work(announce)` in a forked process; (its id, where its announcements arrive)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(lambda step: os.write(writer, step.to_bytes(8, "little")))
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def end(child, reader) -> tuple[bool, list[int]]:
    """(whether it was killed, the steps it announced); waits for the end of it."""
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    return os.WIFSIGNALED(status), np.frombuffer(said, "<i8").tolist()


def go_on(run, newest) -> list[str]:
    """What the killed writer left; the next write has to clear it away."""
    left = [name for name in os.listdir(run) if name.startswith((".writing", ".deleting"))]
    write(run, newest.state["step"] + 1, newest.path)
    names = sorted(os.listdir(run))
    assert names == [".writer-lock", *sorted(path.name for path in checkpoint.find(run))]
    assert len(names) == 3
    return left


def killed_at_any_time(run, kills) -> list[str]:
    random, left = np.random.default_rng(0), []
    for _ in range(kills):
        before = checkpoint.open_newest(run)

        def work(announce, path=before.path, step=before.state["step"]):
            while True:
                step += 1
                path = write(run, step, path)
                announce(step)

        child, reader = in_a_child(work)
        time.sleep(random.uniform(0, 0.025))
        os.kill(child, signal.SIGKILL)
        killed, announced = end(child, reader)
        assert killed
        newest = check(run)
        assert newest.state["step"] >= max([before.state["step"], *announced])
        left += go_on(run, newest)
    return left


def killed_at_every_stage(run):
    for stage in STAGES:
        before = check(run)
        step = before.state["step"] + 1
        at_stage = lambda now, stage=stage: now == stage and kill()  # noqa: E731
        work = lambda announce, b=before, s=step, p=at_stage: write(run, s, b.path, p)  # noqa: E731
        assert end(*in_a_child(work)) == (True, [])
        newest = check(run)
        assert newest.state["step"] == step - (STAGES.index(stage) < STAGES.index("rename"))
        go_on(run, newest)


def killed_before_every_call(run) -> int:
    """Kill before the n-th call to the system that changes the disk, for every n there is."""
    n = 0
    while True:
        before, n = check(run), n + 1

        def work(announce, before=before, n=n):
            seen = iter(range(1, n))

            def counted(call):
                return lambda *args, **kw: call(*args, **kw) if next(seen, 0) else kill()

            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            write(run, before.state["step"] + 1, before.path)

        killed, _ = end(*in_a_child(work))
        go_on(run, check(run))
        if not killed:
            return n - 1


def main(folder):
    warnings.simplefilter("error")  # no fallback: what is committed is whole
    counts = {}
    for name, work in {
        "stages": killed_at_every_stage,
        "calls": killed_before_every_call,
        "left": lambda run: killed_at_any_time(run, KILLS),
    }.items():
        run = Path(folder) / name
        write(run, 2, write(run, 1, None))
        counts[name] = work(run)
    print(json.dumps(counts))


def test_a_killed_writer_leaves_a_whole_checkpoint(tmp_path, backend):
    import pytest

    if backend == "jax":
        pytest.skip("no backend takes part; it runs under tensorflow")
    result = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    counts = json.loads(result.stdout.splitlines()[-1])
    assert counts["calls"] > 20
    assert len(counts["left"]) > KILLS / 4  # as many kills came in the middle of a write


if __name__ == "__main__":
    main(sys.argv[1])
