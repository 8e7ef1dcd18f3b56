"""Classes by name, as checkpoints tell them."""

from __future__ import annotations

_PACKAGES = ("kerasrl_gpu", "rl", "keras")


def class_name(thing) -> str:
    """An object's class as "module:Name"."""
    return f"{type(thing).__module__}:{type(thing).__qualname__}"


def same_class(name: str | None, other: str | None) -> bool:
    """Whether two names mean one class.

    Of a user's own class the module does not count: a script that was run is `__main__`, and has
    another name where it is imported.
    """
    if name is None or other is None:
        return name == other
    if any(one.partition(".")[0].partition(":")[0] in _PACKAGES for one in (name, other)):
        return name == other
    return name.partition(":")[2] == other.partition(":")[2]
