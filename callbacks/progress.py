"""A progress bar with a line of readings below it."""

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text


class ProgressDisplay:
    """Drawn only when `draw` is called: no thread of its own, so nothing runs between the draws.

    While it is shown, what others print appears above it.

    Args:
        console: a terminal.
        nb_steps: the step at which the bar is full; None where nobody knows.
    """

    def __init__(self, console: Console, nb_steps: int | None):
        self._progress = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[pace]}", markup=False),
            console=console,
            auto_refresh=False,
            expand=True,
        )
        self._task = self._progress.add_task("", total=nb_steps, pace="")
        # Gone at the end: the lines above it tell the same.
        self._live = Live(self._progress, console=console, auto_refresh=False, transient=True)
        self._live.start()

    def draw(self, step: int, pace: str, readings: str) -> None:
        self._progress.update(self._task, completed=step, pace=pace)
        # Text, not markup: a metric may be called "q[0]".
        self._live.update(Group(self._progress, Text(readings)), refresh=True)

    def stop(self) -> None:
        self._live.stop()
