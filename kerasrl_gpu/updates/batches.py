"""The transitions of one update, computed all at once or a few rows at a time.

How many at a time decides the memory that an update takes and its pace, and nothing of what is
learned: every row's loss is divided by the whole batch, gradients are summed over the rows, and
whoever called clips and applies them once.
"""

from __future__ import annotations

from keras import ops, tree

from kerasrl_gpu import engine


class Batch:
    """B transitions that can be read in parts.

    Args:
        read: (first row i32[], number of rows) -> the rows, see `pool.transitions.read`.
        size: B.
        at_once: rows computed at a time, m; None or B for all. Where it does not divide B, the
            rows that are left over come last.
        unroll: whether the parts are written out instead of looped over.
    """

    def __init__(self, read, size: int, at_once: int | None = None, unroll: bool = False):
        self.read, self.size, self.unroll = read, size, unroll
        self.at_once = size if at_once is None else min(at_once, size)

    @classmethod
    def of(cls, rows, size: int, at_once: int | None = None, unroll: bool = False) -> Batch:
        """A batch that was read already.

        Args:
            rows: name -> array[B, ...], or a structure of such.
            size, at_once, unroll: see the class.
        """

        def part(array, first, count):
            start = (first, *[0] * (len(array.shape) - 1))
            return ops.slice(array, start, (count, *array.shape[1:]))

        def read(first, count):
            if count == size:
                return rows
            return tree.map_structure(lambda array: part(array, first, count), rows)

        return cls(read, size, at_once, unroll)


def accumulate(learn, batch: Batch, trainable, non_trainable, said=()):
    """Run `learn` over every row of a batch, and sum the gradients.

    Args:
        learn: (rows, share, non_trainable) -> (gradients, non_trainable, regularisation f32[],
            said). `share` is the part of B that the rows are, a float: the gradients have to be
            those of the sum of their losses divided by B, and of `share` times the
            regularisation. `said` is a list of arrays, a value for each row.
        trainable: what the gradients belong to.
        non_trainable: as the first rows' pass finds it; what that leaves is the next one's.
        said: (dtype, shape of a row's value) of each array that `learn` says.

    Returns:
        (gradients, non_trainable, regularisation, said of all B rows).
    """
    if batch.at_once == batch.size:
        return learn(batch.read(0, batch.size), 1.0, non_trainable)

    def add(first, count, total):
        gradients, left, _, heard = total
        more, left, regularisation, said = learn(batch.read(first, count), count / batch.size, left)
        gradients = [
            one + ops.cast(ops.convert_to_tensor(other), "float32")
            for one, other in zip(gradients, more, strict=True)
        ]
        heard = [
            ops.slice_update(whole, (first, *[0] * (len(part.shape) - 1)), part)
            for whole, part in zip(heard, said, strict=True)
        ]
        return gradients, list(left), regularisation, heard

    # summed in 32 bits, whatever the weights are
    nothing = [ops.zeros(weight.shape, "float32") for weight in trainable]
    heard = [ops.zeros((batch.size, *shape), dtype) for dtype, shape in said]
    total = nothing, list(non_trainable), ops.zeros((), "float32"), heard
    parts, rest = divmod(batch.size, batch.at_once)
    total = engine.repeat(
        lambda index, total: add(index * batch.at_once, batch.at_once, total),
        parts,
        total,
        batch.unroll,
    )
    if rest:
        total = add(parts * batch.at_once, rest, total)
    gradients, *others = total
    return [ops.cast(g, w.dtype) for g, w in zip(gradients, trainable, strict=True)], *others
