"""What every update ends with: the blend of the target, then the optimizer."""

from __future__ import annotations

from kerasrl_gpu import losses


def step(online, target, slots, gradients, non_trainable, *, optimizer, tau):
    """One optimizer step of a network, and the blend of its target.

    Args:
        online, target: Weights.
        slots: the optimizer's.
        gradients: one for each of `online.trainable`.
        non_trainable: what the pass that was learned from left behind.
        optimizer: engine.Optimizer.
        tau: fraction of the online weights in the blend; None leaves the target alone.

    Returns:
        (online, target, slots). The blend takes the weights from before the step, which is what
        keras-rl2 does.
    """
    if tau is not None:
        target = losses.blend(target, online, tau)
    trainable, slots = optimizer.apply(gradients, online.trainable, slots)
    return online._replace(trainable=trainable, non_trainable=non_trainable), target, slots
