"""How an update is executed for the most samples/s within a byte budget; what it learns stays.

`points` lists what can be chosen, `search` probes, measures and picks, `cache` remembers, `curve`
shows: what they probe and time are callables that the caller hands in, and no backend is loaded.
`agents` and `trials` hand in an agent's device calls, and are imported by their own names.
"""

from kerasrl_gpu.tuning.cache import Cache
from kerasrl_gpu.tuning.choose import Choice, Reading, choose
from kerasrl_gpu.tuning.points import Point, exact_points, free_points
from kerasrl_gpu.tuning.search import search

__all__ = [
    "Cache",
    "Choice",
    "Point",
    "Reading",
    "choose",
    "exact_points",
    "free_points",
    "search",
]
