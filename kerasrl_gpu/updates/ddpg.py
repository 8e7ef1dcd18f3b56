"""The update of deep deterministic policy gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from keras import ops

from kerasrl_gpu import engine, losses, measures, targets
from kerasrl_gpu.state import Weights
from kerasrl_gpu.updates.batches import accumulate
from kerasrl_gpu.updates.step import step


class DDPGRule(NamedTuple):
    """What does not change between updates.

    Attributes:
        delta: where the critic's loss turns linear, reward units.
        tau: fraction of the online weights in every blend; None leaves the targets alone.
        measures: [(name, function)] of the critic to report.
    """

    delta: float
    tau: float | None
    measures: list


def critic_update(state, batch, *, actor, critic, optimizer, rule):
    """One step of the critic towards what the target networks say.

    Args:
        state: TrainState with the networks "actor" and "critic", online and target.
        batch: updates.batches.Batch; how many rows it computes at a time changes nothing here.
        actor: (weights, seen, training) -> (action f32[B, A], aux).
        critic: (weights, seen, training, action) -> (q f32[B, 1], aux).
        optimizer: engine.Optimizer of the critic.
        rule: DDPGRule.

    Returns:
        (state, metrics f32[M]): the loss, then `rule.measures` of target and value f32[B, 1].

    Source: arXiv:1509.02971, algorithm 1. The blend takes the weights from before the step, which
    is what keras-rl2 does.
    """
    online, target, slots = state.online["critic"], state.target["critic"], state.slots["critic"]

    def learn(rows, share, non_trainable):
        seen_next = rows["next_observation"]
        action_next, _ = actor(state.target["actor"], seen_next, training=False)
        q_next, _ = critic(target, seen_next, training=False, action=action_next)
        y = targets.policy_value(rows["reward"], rows["discount"], q_next[:, 0])

        def loss_fn(trainable):
            weights = Weights(trainable, non_trainable)
            q, aux = critic(weights, rows["observation"], training=True, action=rows["action"])
            error = losses.huber(y - q[:, 0], rule.delta)
            loss = ops.sum(error) / batch.size + share * aux.regularisation
            return optimizer.scale(loss, slots), (error, q, aux)

        (_, (error, q, aux)), gradients = engine.value_and_grad(loss_fn)(online.trainable)
        return gradients, aux.non_trainable, aux.regularisation, [error, y[:, None], q]

    one = ("float32", (1,))
    gradients, non_trainable, regularisation, (error, y, q) = accumulate(
        learn, batch, online.trainable, online.non_trainable, said=(("float32", ()), one, one)
    )
    online, target, slots = step(
        online, target, slots, gradients, non_trainable, optimizer=optimizer, tau=rule.tau
    )
    report = measures.report(ops.mean(error) + regularisation, rule.measures, y, q)
    return _replace(state, "critic", online, target, slots), report


def actor_update(state, batch, *, actor, critic, optimizer, rule):
    """One step of the actor uphill on the critic as it is now.

    The critic is only looked at (training=False): its statistics are its own update's.

    Args, Source: see `critic_update`; `optimizer` is the actor's.

    Returns:
        state.
    """
    online, target, slots = state.online["actor"], state.target["actor"], state.slots["actor"]

    def learn(rows, share, non_trainable):
        seen = rows["observation"]

        def loss_fn(trainable):
            action, aux = actor(Weights(trainable, non_trainable), seen, training=True)
            q, _ = critic(state.online["critic"], seen, training=False, action=action)
            loss = share * aux.regularisation - ops.sum(q) / batch.size
            return optimizer.scale(loss, slots), aux

        (_, aux), gradients = engine.value_and_grad(loss_fn)(online.trainable)
        return gradients, aux.non_trainable, aux.regularisation, []

    gradients, non_trainable, _, _ = accumulate(
        learn, batch, online.trainable, online.non_trainable
    )
    online, target, slots = step(
        online, target, slots, gradients, non_trainable, optimizer=optimizer, tau=rule.tau
    )
    return _replace(state, "actor", online, target, slots)


def ddpg_update(state, batch, *, actor, critic, optimizers, rule, what):
    """Learn from one batch: the critic first, then the actor through the critic as it became.

    Args:
        optimizers: name -> engine.Optimizer.
        what: which of "critic" and "actor" learn.
        state, batch, actor, critic, rule: see `critic_update`.

    Returns:
        (state, metrics f32[M]); NaN while the critic does not learn.
    """
    report = ops.full((1 + len(rule.measures),), np.nan, dtype="float32")
    if "critic" in what:
        state, report = critic_update(
            state, batch, actor=actor, critic=critic, optimizer=optimizers["critic"], rule=rule
        )
    if "actor" in what:
        state = actor_update(
            state, batch, actor=actor, critic=critic, optimizer=optimizers["actor"], rule=rule
        )
    return state, report


def _replace(state, name, online, target, slots):
    return state._replace(
        online={**state.online, name: online},
        target={**state.target, name: target},
        slots={**state.slots, name: slots},
    )
