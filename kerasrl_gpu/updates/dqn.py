"""The update of deep Q-networks."""

from __future__ import annotations

from typing import NamedTuple

from keras import ops

from kerasrl_gpu import engine, losses, measures, targets
from kerasrl_gpu.state import Weights
from kerasrl_gpu.updates.batches import accumulate
from kerasrl_gpu.updates.step import step


class DQNRule(NamedTuple):
    """What does not change between updates.

    Attributes:
        double: the online network picks the next action.
        delta: where the loss turns linear, reward units.
        tau: fraction of the online weights in every blend; None leaves the target alone.
        measures: [(name, function)] to report.
        nb_actions: A.
    """

    double: bool
    delta: float
    tau: float | None
    measures: list
    nb_actions: int


def dqn_update(state, batch, *, net, optimizer, rule):
    """Learn from one batch.

    Args:
        state: TrainState with the network "model", online and target.
        batch: updates.batches.Batch; how many rows it computes at a time changes nothing here.
        net: (weights, seen, training) -> (q f32[B, A], aux).
        optimizer: engine.Optimizer.
        rule: DQNRule.

    Returns:
        (state, metrics f32[M]): the loss, then `rule.measures` of the masked targets
        f32[B, A] and the Q-values, as keras-rl computes them.

    Source: doi:10.1038/nature14236; double: arXiv:1509.06461. The blend takes the weights from
    before the step, which is what keras-rl2 does.
    """
    online, target, slots = state.online["model"], state.target["model"], state.slots["model"]

    def learn(rows, share, non_trainable):
        q_next_target, _ = net(target, rows["next_observation"], training=False)
        if rule.double:
            q_next_online, _ = net(online, rows["next_observation"], training=False)
            y = targets.double_q(rows["reward"], rows["discount"], q_next_online, q_next_target)
        else:
            y = targets.max_q(rows["reward"], rows["discount"], q_next_target)

        def loss_fn(trainable):
            q, aux = net(Weights(trainable, non_trainable), rows["observation"], training=True)
            error = losses.huber(y - losses.chosen(q, rows["action"]), rule.delta)
            loss = ops.sum(error) / batch.size + share * aux.regularisation
            return optimizer.scale(loss, slots), (error, q, aux)

        (_, (error, q, aux)), gradients = engine.value_and_grad(loss_fn)(online.trainable)
        action = ops.cast(rows["action"], "int32")
        return gradients, aux.non_trainable, aux.regularisation, [error, y, action, q]

    value = ("float32", ())
    gradients, non_trainable, regularisation, (error, y, action, q) = accumulate(
        learn,
        batch,
        online.trainable,
        online.non_trainable,
        said=(value, value, ("int32", ()), ("float32", (rule.nb_actions,))),
    )
    online, target, slots = step(
        online, target, slots, gradients, non_trainable, optimizer=optimizer, tau=rule.tau
    )
    taken = ops.one_hot(action, rule.nb_actions, dtype="float32")
    loss = ops.mean(error) + regularisation
    report = measures.report(loss, rule.measures, y[:, None] * taken, q)
    return state._replace(
        online={"model": online}, target={"model": target}, slots={"model": slots}
    ), report
