"""The two walks over attributes: objects to plain data, and back."""

from __future__ import annotations

import operator
from collections import deque

import numpy as np

from kerasrl_gpu.attributes import generators, kinds
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.names import class_name

_TAG = "$"
_LEFT = {_TAG: "left"}


class Capture:
    """One walk over objects. Whatever can be changed in place gets a number when it is met first.

    Attributes:
        missing: path -> what is there and cannot be taken.
        left: path -> what was left alone.
        special: path -> what was taken and is more than plain data.
        classes: names of the classes of nested objects.
    """

    def __init__(self, things: list):
        self.missing, self.left, self.special, self.classes = {}, {}, {}, []
        self._numbers = {id(thing): number for number, thing in enumerate(things)}
        self._memory = {}  # id of the array that owns the memory -> [(path, array in it)]

    def pop_missing(self) -> dict:
        """What is missing so far; the next thing starts with none."""
        missing, self.missing = self.missing, {}
        return missing

    def attributes(self, thing, skip, path: str = "") -> dict:
        """Name -> plain data of a thing's attributes but those in `skip`."""
        return {
            name: self.value(value, f"{path}{name}", skip)
            for name, value in kinds.attributes_of(thing).items()
            if name not in skip
        }

    def value(self, value, path: str, skip):
        """One value as plain data; `path` names it in `missing`, `left` and `special`."""
        if kinds.is_atom(value):
            return value
        if id(value) in self._numbers:
            return {_TAG: "seen", "number": self._numbers[id(value)]}
        if type(value) is tuple:
            return self._whole(tuple(self._parts(value, path, skip)))
        if kinds.is_dtype(value):
            self.special[path] = _what(value)
            is_class = isinstance(value, type)
            return {_TAG: "dtype", "name": np.dtype(value).str, "is_class": is_class}
        if kinds.is_constant(value):
            self.left[path] = self.special[path] = _what(value)
            return self._function(value, path, skip)
        self._numbers[id(value)] = len(self._numbers)
        node = self._mutable(value, path, skip)
        if node is _LEFT:
            del self._numbers[id(value)]  # the newest: nothing in it got a number
        return node

    def _mutable(self, value, path, skip):
        if kinds.is_array(value):
            return self._array(value, path)
        if type(value) is list:
            return self._whole(self._parts(value, path, skip))
        if type(value) is deque:
            return self._whole(deque(self._parts(value, path, skip), value.maxlen))
        if type(value) is set and all(map(kinds.is_key, value)):
            return set(value)
        if type(value) is dict and all(map(kinds.is_key, value)):
            node = {key: self.value(v, f"{path}[{key!r}]", skip) for key, v in value.items()}
            return {_TAG: "dict", "items": node} if _TAG in node else self._whole(node)
        if generators.is_generator(value):
            self.special[path] = _what(value)
            return {_TAG: "generator", **generators.take(value)}
        if kinds.is_open(value):
            return self._object(value, path, skip)
        self.missing[path] = _what(value)
        return dict(_LEFT)  # with a number, unlike _LEFT itself

    def _function(self, value, path, skip):
        """Left alone, but for the generators that it draws from."""
        drawn = [self.value(one, path, skip) for one in generators.behind(value)]
        return {_TAG: "function", "generators": drawn} if drawn else _LEFT

    def _object(self, value, path, skip):
        self.special[path] = _what(value)
        self.classes.append(class_name(value))
        state = self.attributes(value, skip, f"{path}.")
        return {_TAG: "object", "class": class_name(value), "state": state}

    def _parts(self, values, path, skip) -> list:
        return [self.value(v, f"{path}[{index}]", skip) for index, v in enumerate(values)]

    def _whole(self, node):
        """`node`; or left alone, where all that is in it is."""
        parts = node.values() if isinstance(node, dict) else node
        return _LEFT if parts and all(part is _LEFT for part in parts) else node

    def _array(self, value, path):
        """A copy. A part of another attribute's memory would come apart from it."""
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        others = self._memory.setdefault(id(owner), [])
        for other, array in others:
            if np.may_share_memory(value, array):
                self.missing[path] = f"a view of the memory of {other}"
        others.append((path, value))
        return value.copy()


class Restore:
    """The same walk over what was captured, beside the objects that are there now."""

    def __init__(self, things: list):
        self._met = list(things)  # by number
        self._used = set()  # ids of what was set in place

    def attributes(self, thing, state: dict, path: str) -> None:
        """Give `thing` what `Capture.attributes` returned."""
        here = kinds.attributes_of(thing)
        for name, node in state.items():
            live = here.get(name)
            if _tag(node) == "left" or (node is None and kinds.is_constant(live)):
                continue
            value = self.value(node, live, f"{path}.{name}")
            if value is not live or name not in here:
                object.__setattr__(thing, name, value)  # the class may forbid or extend it

    def value(self, node, live, path: str):
        """The value that a node stands for: `live` set in place, or another in its stead."""
        tag = _tag(node)
        if tag is None:
            return self._plain(node, live, path)
        if tag == "dict":
            return self._plain(node["items"], live, path)
        if tag == "seen":
            return self._met[node["number"]]
        if tag == "dtype":
            dtype = np.dtype(node["name"])
            return dtype.type if node["is_class"] else dtype
        if tag == "left":
            return self._left(live, path)
        if tag == "function":
            return self._function(node, live, path)
        if id(live) in self._used:
            live = None  # shared here, and was not when it was captured
        if tag == "object":
            return self._object(node, live, path)
        generator = generators.put(node, live)
        self._meet(generator)
        return generator

    def _plain(self, node, live, path):
        if type(node) is tuple:
            return tuple(self._parts(node, live, path))
        if kinds.is_atom(node):
            return node
        if type(node) in (np.ndarray, set):
            fresh = node.copy()
            self._met.append(fresh)
            return fresh
        fresh = deque(maxlen=node.maxlen) if type(node) is deque else type(node)()
        self._met.append(fresh)  # before what is in it, which may hold it
        if type(node) is dict:
            for key, part in node.items():
                fresh[key] = self.value(part, _part(live, key, dict), f"{path}[{key!r}]")
        else:
            fresh.extend(self._parts(node, live, path))
        return fresh

    def _parts(self, node, live, path):
        for index, part in enumerate(node):
            yield self.value(part, _part(live, index, type(node)), f"{path}[{index}]")

    def _object(self, node, live, path):
        if live is None:
            live = made(node["class"])
        elif class_name(live) != node["class"]:
            raise CheckpointError(
                f"{path} is a {class_name(live)} here, and was a {node['class']} when it was "
                "saved. Construct the object as it was then."
            )
        self._meet(live)
        self.attributes(live, node["state"], path)
        return live

    def _function(self, node, live, path):
        found = generators.behind(self._left(live, path))
        if len(found) == len(node["generators"]):
            put = [self.value(*pair, path) for pair in zip(node["generators"], found)]
            if all(map(operator.is_, put, found)):
                return live
        raise CheckpointError(
            f"{path} draws from other generators here than when it was saved. Construct the "
            "object as it was then."
        )

    def _meet(self, live):
        self._met.append(live)
        self._used.add(id(live))

    def _left(self, live, path):
        if live is None:
            raise CheckpointError(
                f"{path} held what no checkpoint can hold, and there is nothing in its place here. "
                "Construct the object as it was when it was saved."
            )
        return live


def check_rebuildable(name: str) -> type:
    """The class of that name; raises CheckpointError where a checkpoint may not name it."""
    from kerasrl_gpu.attributes import rebuildable  # only here: it loads Keras

    return rebuildable.class_called(name)


def made(name: str):
    """An object of that class, without attributes."""
    kind = check_rebuildable(name)
    return kind.__new__(kind)


def _tag(node):
    return node.get(_TAG) if type(node) is dict else None


def _part(live, key, kind: type):
    """live[key], where there is something like it."""
    try:
        return live[key] if type(live) is kind else None
    except (IndexError, KeyError):
        return None


def _what(value) -> str:
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"of type {name}"
