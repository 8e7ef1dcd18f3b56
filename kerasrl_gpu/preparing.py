"""What an agent settles on its first observation: pool, processing, compiled calls."""

from __future__ import annotations

import warnings

import numpy as np

from kerasrl_gpu import execution, host, sizing, splitting, tracing
from kerasrl_gpu.learner import Learner, bare


def first_look(agent, observation, state=None):
    """Look at an observation, and find out how such are processed.

    Args:
        state: k observations; None makes zeros before this one.

    Returns:
        (seen, process): an example of what networks see, with a batch axis of 1, and the
        function that makes it inside a compiled call (None: the host does it).
    """
    agent.check_compiled()
    if agent.on_pool:
        agent.memory.look_at(observation)
    state = state or agent.memory.get_recent_state(observation)
    process, reason = host.traced_processor(agent, state)
    agent.learns_on_host = process is None
    agent.acts_separately = process is None or reason is not None
    if reason is not None:
        warnings.warn(reason, stacklevel=5)
    agent.traced_as = None
    if process is not None:
        agent.traced_as = agent.processor, tracing.attributes_read(agent.processor)
    return host.narrow(agent.process_state_batch([state])), process


def make_learner(agent, networks, seen, process, *, update, act, probe=None) -> None:
    """Allocate the pool and make the compiled calls; see `Learner` for the functions.

    Args:
        networks: name -> state.Network of those that learn.
        seen, process: what `first_look` returned.
    """
    if agent.on_pool:  # only now: what the models cannot take is not what the pool will hold
        sizing.settle_batch_size(agent)
        agent.memory.allocate()
    agent.trainer.learner = Learner(
        update=update,
        act=act,
        probe=probe,
        rule=agent.rule,
        batch_size=agent.batch_size,
        updates=agent.updates,
        process=process,
        nb_metrics=1 + len(agent.measures),
        draws=lambda: splitting.check(networks, *_rows(agent, seen, process), agent.nb_actions),
        execution=agent.execution,
        convolutional=any(
            len(variable.shape) > 2
            for model in agent.networks().values()
            for variable in model.trainable_variables
        ),
    )
    execution.check_possible(agent, agent.execution, agent.batch_size)
    agent.prepared = True


def _rows(agent, seen, process):
    """What `splitting.check` tries the networks on: its `rows` and its `process`."""
    if process is None or not agent.on_pool:  # the host processes whole batches
        fields = seen if isinstance(seen, dict) else {"observation": seen}
        process = host.identity
        shapes = {name: (array.shape[1:], array.dtype) for name, array in fields.items()}
    else:
        k, fields = agent.memory.window_length, agent.memory.spec.fields
        shapes = {name: ((k, *one.shape), np.dtype(one.dtype)) for name, one in fields.items()}

    def drawn(random, shape, dtype):
        values = random.uniform(
            0, 2, (splitting.ROWS, *shape)
        )  # few whole ones: an Embedding has to know them
        values[0] = (values[1] + 1) % 2
        return (np.floor(values) if dtype.kind in "biu" else values).astype(dtype)

    return lambda random: bare({n: drawn(random, *one) for n, one in shapes.items()}), process


def look_at_processor(agent) -> None:
    """Have everything compiled anew where the processor, or what it reads, is not as traced."""
    if agent.traced_as is not None:
        processor, attributes = agent.traced_as
        same = processor is agent.processor
        if not same or not tracing.reads_the_same(processor, attributes):
            agent.prepared = False
