"""Deep deterministic policy gradient: keras-rl's `DDPGAgent`."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
from keras import ops

from kerasrl_gpu import files, host, losses, measures, optimizers, preparing
from kerasrl_gpu.core import Agent
from kerasrl_gpu.errors import ArgumentError, check_count
from kerasrl_gpu.inputs import Inputs, action_index, build_on, check_is_keras, check_output
from kerasrl_gpu.keras_rl import config_of
from kerasrl_gpu.planning.passes import Pass
from kerasrl_gpu.pool.layout import Field
from kerasrl_gpu.resume import restoring
from kerasrl_gpu.state import Network
from kerasrl_gpu.updates.ddpg import DDPGRule, ddpg_update


class DDPGAgent(Agent):
    """DDPG, with keras-rl's arguments in keras-rl's order; ours are keyword-only.

    Args:
        nb_actions: how many numbers an action has, A.
        actor: observations [B, window, ...] -> actions [B, A].
        critic: observations and an action -> value [B, 1].
        critic_action_input: the critic's input that takes the action, one of `critic.inputs`.
        memory: DeviceMemory, keras-rl's SequentialMemory, or another keras-rl Memory.
        gamma: discount a step.
        batch_size: transitions an update.
        nb_steps_warmup_critic, nb_steps_warmup_actor: steps before the first update of each.
        train_interval: steps from one update to the next.
        memory_interval: every step is stored, every so-many-th may start a transition.
        delta_range: deprecated in keras-rl; (-d, d) is delta_clip=d.
        delta_clip: where the critic's loss turns linear, reward units.
        random_process: noise added to the action while training.
        custom_model_objects: kept for keras-rl's sake; Keras 3 has a registry.
        target_model_update: below 1 the fraction blended at each update, else the number of steps
            between two copies.
        processor: keras-rl Processor.
        seed, updates, truncation, micro_batch, updates_per_call: see `core.Agent`.

    Noise does not carry an action out of the environment's bounds: it is clipped to
    `env.action_space`, unless the processor has a `process_action` of its own.

    Raises:
        ShapeError: actor or critic have another output than these.
        ArgumentError: the critic does not have that input, or an argument cannot be honoured.
    """

    def __init__(
        self,
        nb_actions,
        actor,
        critic,
        critic_action_input,
        memory,
        gamma=0.99,
        batch_size=32,
        nb_steps_warmup_critic=1000,
        nb_steps_warmup_actor=1000,
        train_interval=1,
        memory_interval=1,
        delta_range=None,
        delta_clip=np.inf,
        random_process=None,
        custom_model_objects=None,
        target_model_update=0.001,
        processor=None,
        *,
        seed=None,
        updates=1,
        truncation="bootstrap",
        micro_batch=None,
        updates_per_call=None,
    ):
        super().__init__(
            memory=memory,
            processor=processor,
            gamma=gamma,
            batch_size=batch_size,
            train_interval=train_interval,
            memory_interval=memory_interval,
            target_model_update=target_model_update,
            delta_range=delta_range,
            delta_clip=delta_clip,
            custom_model_objects=custom_model_objects,
            seed=seed,
            updates=updates,
            truncation=truncation,
            micro_batch=micro_batch,
            updates_per_call=updates_per_call,
        )
        check_is_keras(actor, "actor")
        check_is_keras(critic, "critic")
        self.nb_actions = check_count("nb_actions", nb_actions, 1)
        self.nb_steps_warmup_critic = check_count("nb_steps_warmup_critic", nb_steps_warmup_critic)
        self.nb_steps_warmup_actor = check_count("nb_steps_warmup_actor", nb_steps_warmup_actor)
        self._actor, self._critic, self._settled = actor, critic, False
        self.critic_action_input = critic_action_input
        self.critic_action_input_idx = action_index(critic, critic_action_input)
        check_output(critic, (1,), "a DDPG's critic")
        if actor.built:
            self._settle_actor()
        self._take_memory(Field("float32", (self.nb_actions,)))
        self.random_process = random_process
        if hasattr(random_process, "seed"):
            random_process.seed(self.derived_seed(100))
        self._optimizer_pair, self.measures, self._bounds = None, [], None
        self.reset_states()

    def _settle_actor(self):
        check_output(self._actor, (self.nb_actions,), "a DDPG's actor")
        self._settled = True

    # keras-rl's objects -------------------------------------------------------------------------

    @property
    def actor(self):
        """The Keras model that acts, with the weights that training has reached."""
        self.sync()
        return self._actor

    @property
    def critic(self):
        """The Keras model that values actions, with the weights that training has reached."""
        self.sync()
        return self._critic

    @property
    def target_actor(self):
        """A Keras model with the target actor's weights; made when asked for."""
        return self._target_model("actor", self._actor)

    @property
    def target_critic(self):
        """A Keras model with the target critic's weights; made when asked for."""
        return self._target_model("critic", self._critic)

    @property
    def optimizer(self):
        """The critic's Keras optimizer, whose steps Keras' TensorBoard counts."""
        return self.critic_optimizer

    @property
    def actor_optimizer(self):
        """The actor's Keras optimizer; a learning rate set on it holds from the next update."""
        self.flush()
        return self._optimizer_pair and self._optimizer_pair[0]

    @property
    def critic_optimizer(self):
        """The critic's Keras optimizer; a learning rate set on it holds from the next update."""
        self.flush()
        return self._optimizer_pair and self._optimizer_pair[1]

    @property
    def layers(self):
        return self._actor.layers[:] + self._critic.layers[:]

    @property
    def metrics_names(self):
        names = ["loss", *(name for name, _ in self.measures)]
        return names if self.processor is None else names + list(self.processor.metrics_names)

    def get_config(self):
        """The arguments that are plain values; models and processors are saved by themselves."""
        return {
            **super().get_config(),
            "nb_actions": self.nb_actions,
            "critic_action_input_idx": self.critic_action_input_idx,
            "nb_steps_warmup_critic": self.nb_steps_warmup_critic,
            "nb_steps_warmup_actor": self.nb_steps_warmup_actor,
            "random_process": config_of(self.random_process),
        }

    def parts(self):
        """See `Agent`."""
        return {**super().parts(), "random_process": self.random_process}

    def networks(self):
        """See `Agent`."""
        return {"actor": self._actor, "critic": self._critic}

    def acting(self):
        """See `Agent`."""
        low, high = self._bounds or (None, None)
        return {"network": "actor", "discrete": False, "low": low, "high": high}

    def passes(self):
        """See `Agent`."""
        learning = {"keeps": True, "learns": True}
        return [
            [Pass("actor"), Pass("critic"), Pass("critic", **learning)],
            [Pass("actor", **learning), Pass("critic", keeps=True)],
        ]

    @classmethod
    def from_config(cls, config, networks, objects, own):
        """An agent from `get_config`'s dict, its networks and its objects, both by name.

        Args:
            own: nothing here: the agent takes networks as they are.
        """
        arguments = {**config, **objects, **networks}
        index = arguments.pop("critic_action_input_idx")
        return cls(**arguments, critic_action_input=networks["critic"].inputs[index])

    # Learning -----------------------------------------------------------------------------------

    def compile(self, optimizer, metrics=()):
        """Get ready to train; compiled again, the optimizers start with fresh slots.

        Args:
            optimizer: a keras optimizer or its name, for both networks (the critic gets its own
                of the same settings); or a pair (actor's, critic's).
            metrics: names, functions of (y_true, y_pred) or keras metrics of the critic; or a
                pair of such lists (actor's, critic's), of which keras-rl reports the critic's.
                mean_q is always added. Nothing passed is changed.
        """
        self.sync()
        self._optimizer_pair = optimizers.fresh_pair(optimizer, self._actor, self._critic)
        metrics = metrics or ()
        if len(metrics) == 2 and all(isinstance(part, (list, tuple)) for part in metrics):
            metrics = metrics[1]
        self.measures = measures.resolve(metrics, losses.mean_q)
        if self._settled:
            self._start_networks()
        self.compiled = True

    def _start_networks(self):
        names = ("actor", "critic")
        models = dict(zip(names, (self._actor, self._critic), strict=True))
        self._start(models, names, dict(zip(names, self._optimizer_pair, strict=True)))

    def prepare(self, observation, state=None):
        """Build what depends on the first observation: pool, actor, compiled calls."""
        seen, process = preparing.first_look(self, observation, state)
        if not self._settled:
            build_on(self._actor, seen)
            self._settle_actor()
        if self.trainer is None:
            self._start_networks()
        window = self.memory.window_length
        actor = Network(self._actor, Inputs(self._actor, seen, window))
        at = self.critic_action_input_idx
        critic = Network(self._critic, Inputs(self._critic, seen, window, at))
        tau = self.target_model_update if self.target_model_update < 1 else None
        update = partial(
            ddpg_update,
            actor=actor,
            critic=critic,
            optimizers=self.trainer.mirror.optimizers,
            rule=DDPGRule(self.delta_clip, tau, self.measures),
        )

        def act(state, seen):
            return actor(state.online["actor"], seen, training=False)[0]

        def probe(state, seen):
            action = act(state, seen)
            value, _ = critic(state.online["critic"], seen, training=False, action=action)
            return ops.concatenate([action, value], axis=-1)

        preparing.make_learner(
            self,
            {"actor": actor, "critic": critic},
            seen,
            process,
            update=lambda what: partial(update, what=what),
            act=act,
            probe=probe,
        )

    def begin_run(self, env, training, resumed=False):
        """See `Agent`; also learns the action bounds."""
        space = getattr(env, "action_space", None)
        self._bounds = None
        if getattr(space, "low", None) is not None and not host.processes_actions(self):
            self._bounds = np.float32(space.low), np.float32(space.high)
        return super().begin_run(env, training, resumed)

    def forward(self, observation):
        """The action f32[A]; inside `fit` the queued update runs in the same call."""
        if not self.prepared:
            self.prepare(observation)
        if self.closing:
            return self._see_last(observation)
        if self.acts_separately:
            action = self.select_action(self.memory.get_recent_state(observation))
        else:
            action = self._with_noise(self._advance(observation))
        self.recent_observation, self.recent_action = observation, action
        return action

    def select_action(self, state):
        """The action f32[A] for a state of `window_length` observations, with noise in training."""
        if not self.prepared:
            self.prepare(state[-1], state)
        return self._with_noise(self._infer([state])[0])

    def _with_noise(self, action):
        if self.training and self.random_process is not None:
            noise = self.random_process.sample()
            if np.shape(noise) != action.shape:
                raise ArgumentError(
                    f"random_process gives noise of shape {np.shape(noise)} for actions of shape "
                    f"{action.shape}; pass size={self.nb_actions} to it."
                )
            action = (action + noise).astype(np.float32)
        if self._bounds is not None:
            action = np.minimum(np.maximum(action, self._bounds[0]), self._bounds[1])
        return action

    def backward(self, reward, terminal=False):
        """Store the step and learn when it is time; see keras-rl.

        Returns:
            one number for each of `metrics_names`; NaN while the critic does not learn. Inside
            `fit` the numbers are brought over from the device when they are first read.
        """
        tail = [] if self.processor is None else list(self.processor.metrics)
        return self._backward(reward, terminal, tail)

    def _what(self):
        what = ()
        if self.step > self.nb_steps_warmup_critic:
            what += ("critic",)
        if self.step > self.nb_steps_warmup_actor:
            what += ("actor",)
        return what

    def update_target_models_hard(self):
        """Give both target networks the online networks' weights."""
        self._copy_targets()

    def reset_states(self):
        """Forget the last observation and action, and start the noise anew."""
        if self.random_process is not None:
            self.random_process.reset_states()
        self.recent_observation = self.recent_action = None

    # Files --------------------------------------------------------------------------------------

    def load_weights(self, filepath):
        """Read weights from the two files that keras-rl names; the targets get them too.

        Of a checkpoint's directory, or a run's, the targets' own weights are read, and nothing of
        its pool.

        Raises:
            CheckpointError: the directory has no whole checkpoint, or of other networks.
        """
        if os.path.isdir(filepath):
            return restoring.load_weights(self, filepath)
        files.load_all(self._named_models(filepath))
        self.take_weights()
        self._copy_targets()

    def save_weights(self, filepath, overwrite=False):
        """Write the weights to two files, _actor and _critic before the extension."""
        files.save_all(self._named_models(filepath), overwrite)

    def _named_models(self, filepath) -> dict:
        actor, critic = files.actor_critic_names(filepath)
        return {actor: self.actor, critic: self.critic}
