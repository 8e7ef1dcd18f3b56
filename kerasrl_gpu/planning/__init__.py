"""What a training run takes, from shapes alone: bytes before it starts, FLOPs of each layer."""

from kerasrl_gpu.planning.agents import plan, report

__all__ = ["plan", "report"]
