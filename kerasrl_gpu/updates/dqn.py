"""The update of deep Q-networks."""

from __future__ import annotations

from typing import NamedTuple

from keras import ops

from kerasrl_gpu import engine, losses, measures, targets
from kerasrl_gpu.updates.step import step


class DQNRule(NamedTuple):
    """What does not change between updates.

    Attributes:
        double: the online network picks the next action.
        delta: where the loss turns linear, reward units.
        tau: fraction of the online weights in every blend; None leaves the target alone.
        measures: [(name, function)] to report.
    """

    double: bool
    delta: float
    tau: float | None
    measures: list


def dqn_update(state, batch, *, net, optimizer, rule):
    """Learn from one batch.

    Args:
        state: TrainState with the network "model", online and target.
        batch: see `pool.transitions.read`.
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
    q_next_target, _ = net(target, batch["next_observation"], training=False)
    if rule.double:
        q_next_online, _ = net(online, batch["next_observation"], training=False)
        y = targets.double_q(batch["reward"], batch["discount"], q_next_online, q_next_target)
    else:
        y = targets.max_q(batch["reward"], batch["discount"], q_next_target)

    def loss_fn(trainable):
        q, aux = net(online._replace(trainable=trainable), batch["observation"], training=True)
        error = y - losses.chosen(q, batch["action"])
        loss = ops.mean(losses.huber(error, rule.delta)) + aux.regularisation
        return optimizer.scale(loss, slots), (loss, q, aux)

    (_, (loss, q, aux)), gradients = engine.value_and_grad(loss_fn)(online.trainable)
    online, target, slots = step(
        online, target, slots, gradients, aux.non_trainable, optimizer=optimizer, tau=rule.tau
    )
    taken = ops.one_hot(ops.cast(batch["action"], "int32"), q.shape[-1], dtype="float32")
    report = measures.report(loss, rule.measures, y[:, None] * taken, q)
    return state._replace(
        online={"model": online}, target={"model": target}, slots={"model": slots}
    ), report
