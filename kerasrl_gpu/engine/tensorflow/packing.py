"""Nothing is packed: a state is variables, and what a call costs by the variable is small."""

from __future__ import annotations


def unpack(state):
    """`state`: it is never packed."""
    return state
