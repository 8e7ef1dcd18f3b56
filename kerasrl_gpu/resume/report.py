"""What a resume brought back, what it did not find, and what it left alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Report:
    """The result of `agent.load`, completed by the `fit` that goes on from there.

    Attributes:
        path: the checkpoint; None where a run goes on in its own process.
        step: the agent's step there.
        restored: what is as it was.
        absent: what the checkpoint lacks, each with its reason; it starts anew.
        ignored: what the checkpoint holds and this run does not take, each with its reason.
    """

    path: Path | None = None
    step: int = 0
    restored: list = field(default_factory=list)
    absent: list = field(default_factory=list)
    ignored: list = field(default_factory=list)

    def environment(self, reason: str | None, opened: bool) -> None:
        """Note whether the environment is where it was.

        Args:
            reason: why it is not; None where it is.
            opened: whether an episode was open.
        """
        if reason is None:
            self.restored.append("environment")
            return
        closed = "; the open episode was closed as truncated" if opened else ""
        self.absent.append(f"environment: {reason.rstrip('.')}{closed}")

    def __str__(self):
        lines = [f"Resumed {self.path or 'this run'} at step {self.step}"]
        for name in ("restored", "absent", "ignored"):
            if found := getattr(self, name):
                between = ", " if name == "restored" else "\n            "
                lines.append(f"  {name + ':':<10}{between.join(map(str, found))}")
        return "\n".join(lines)
