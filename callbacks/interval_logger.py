"""A progress bar, and one line for each interval of steps."""

import sys
import time

from rich.console import Console

from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.callbacks.checks import check_interval
from kerasrl_gpu.callbacks.progress import ProgressDisplay
from kerasrl_gpu.callbacks.readings import human_mean, human_memory, human_steps, human_time
from kerasrl_gpu.callbacks.running import LateMetrics, RunningMeans, Spread

REFRESH_S = 0.25
MAX_STRIDE = 64  # steps between two looks at the clock


class TrainIntervalLogger(Callback):
    """Prints one line for each interval of steps (`fit(verbose=1)`), the last, shorter one too.

    On a terminal a bar with the pace, the readings of the current interval and the time left
    stands below, redrawn at most four times a second. A step costs a few additions; the metrics
    of a step are read one step later, when they are there anyway.

    Args:
        interval: environment steps to a line.
        console: the rich console to write on; by default standard output. Where it is no terminal
            there are lines only.

    Raises:
        ArgumentError: `interval` is no whole number from 1 upwards.
    """

    def __init__(self, interval=10000, *, console: Console | None = None):
        super().__init__()
        self.interval = check_interval(interval, "steps")
        self.console = console
        self.step = 0
        self._display = None
        self._metrics = LateMetrics(())
        self.reset()

    def reset(self):
        """Begin a new interval."""
        self._due = False
        self._started_s = time.perf_counter()
        self._rewards, self._episodes, self._infos = Spread(), Spread(), RunningMeans()
        self._metrics.reset()

    def on_train_begin(self, logs=None):
        self._stop_display()  # of a run that broke off without an end
        self.step = self.agent.step
        self._metrics = LateMetrics(self.agent.metrics_names)
        self._train_start_s = self._drawn_s = self._looked_s = time.perf_counter()
        self._stride = self._until_look = 1
        self.reset()
        self._nb_steps = self.params.get("nb_steps")
        self._output = self.console
        if self._output is None and sys.stdout.isatty():
            self._output = Console()
        if self._output is not None and self._output.is_terminal:
            self._display = ProgressDisplay(self._output, self._nb_steps)
        self._print(f"Training begins at step {self.step}")

    def on_step_end(self, episode_step, logs=None):
        if self._due:
            # Only now: the metrics of the interval's last step came with this step's action.
            self._close_interval()
        self.step += 1
        self._rewards.add(float(logs["reward"]))
        self._metrics.push(logs.get("metrics"))
        info = logs.get("info")
        if info:
            self._infos.add(info)
        if self.step % self.interval == 0:
            self._due = True
        if self._display is not None:
            self._until_look -= 1
            if self._until_look <= 0:
                self._look()

    def on_episode_end(self, episode, logs=None):
        self._episodes.add(float(logs["episode_reward"]))

    def on_train_end(self, logs=None):
        logs = logs or {}
        self._stop_display()  # first, so that the terminal is whole again whatever happens next
        if self._rewards.count:
            self._close_interval()
        duration = human_time(time.perf_counter() - self._train_start_s)
        reason = logs.get("reason") or ("interrupted" if logs.get("did_abort") else "")
        self._print(f"Done after {duration}" + (f": {reason}" if reason else ""))

    def _close_interval(self) -> None:
        self._metrics.flush()
        self._print(f"{self._pace()} - {self._readings()}")
        self.reset()

    def _pace(self) -> str:
        """How far the run is, and how fast and how long it goes on at the interval's pace."""
        done = f"{human_steps(self.step, self._nb_steps)} steps"
        rate = self._rewards.count / max(time.perf_counter() - self._started_s, 1e-9)
        if self._nb_steps is None or not rate:
            return f"{done} - {rate:.0f} steps/s"
        left_s = max(0, self._nb_steps - self.step) / rate
        return f"{done} - {rate:.0f} steps/s - {human_time(left_s)} left"

    def _readings(self) -> str:
        """The current interval in one line: episodes, means of what steps brought, memory."""
        parts = [f"{self._episodes.count} episodes", f"episode_reward: {self._episodes}"]
        means = {"reward": self._rewards.mean, **self._metrics.means(), **self._infos.means()}
        parts += [f"{name}: {human_mean(mean)}" for name, mean in means.items()]
        return " - ".join([*parts, f"memory: {human_memory(self.agent)}"])

    def _look(self) -> None:
        """Redraw if it is time, and choose after how many steps to look at the clock again."""
        now_s = time.perf_counter()
        slow = now_s - self._looked_s > REFRESH_S / 4
        self._looked_s = now_s
        self._stride = max(1, self._stride // 2) if slow else min(MAX_STRIDE, self._stride * 2)
        self._until_look = self._stride
        if now_s - self._drawn_s >= REFRESH_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn_s = time.perf_counter()
        self._display.draw(self.step, self._pace(), self._readings())

    def _print(self, line: str) -> None:
        if self._output is None:
            print(line, flush=True)
        else:  # above the bar, where there is one
            self._output.print(line, markup=False, highlight=False, soft_wrap=True)

    def _stop_display(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None
