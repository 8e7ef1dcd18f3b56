"""Deep Q-network: keras-rl's `DQNAgent`, with double and dueling variants."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from kerasrl_gpu import files, host, losses, measures, optimizers, preparing
from kerasrl_gpu.core import Agent
from kerasrl_gpu.errors import ArgumentError, check_count
from kerasrl_gpu.heads import DUELING_TYPES, dueling
from kerasrl_gpu.inputs import Inputs, build_on, check_is_keras, check_output
from kerasrl_gpu.keras_rl import Policy, config_of
from kerasrl_gpu.planning.passes import Pass
from kerasrl_gpu.policy import EpsGreedyQPolicy, GreedyQPolicy
from kerasrl_gpu.pool.layout import Field
from kerasrl_gpu.resume import restoring
from kerasrl_gpu.state import Network
from kerasrl_gpu.updates.dqn import DQNRule, dqn_update


class DQNAgent(Agent):
    """Deep Q-network, with keras-rl's arguments in keras-rl's order; ours are keyword-only.

    Args:
        model: observations [B, window, ...] -> Q-values [B, nb_actions]. With a window of 1 the
            window axis may be left out.
        policy, test_policy: keras-rl policies; eps-greedy with 0.1 and greedy by default.
        enable_double_dqn: the online network picks the next action, the target prices it.
        enable_dueling_network: replaces the model's last layer by a dueling head; `agent.model`
            is the new model.
        dueling_type: "avg", "max" or "naive".
        nb_actions: how many discrete actions there are, A.
        memory: DeviceMemory, keras-rl's SequentialMemory, or another keras-rl Memory.
        gamma: discount a step.
        batch_size: transitions an update.
        nb_steps_warmup: steps before the first update.
        train_interval: steps from one update to the next.
        memory_interval: every step is stored, every so-many-th may start a transition.
        target_model_update: below 1 the fraction blended at each update, else the number of steps
            between two copies.
        delta_range: deprecated in keras-rl; (-d, d) is delta_clip=d.
        delta_clip: where the Huber loss turns linear, reward units.
        custom_model_objects: kept for keras-rl's sake; Keras 3 has a registry.
        processor: keras-rl Processor.
        seed, updates, truncation, micro_batch, updates_per_call: see `core.Agent`.

    Raises:
        ShapeError: the model's output is not one value for each action.
        ArgumentError: an argument that cannot be honoured.
    """

    def __init__(
        self,
        model,
        policy=None,
        test_policy=None,
        enable_double_dqn=False,
        enable_dueling_network=False,
        dueling_type="avg",
        nb_actions=None,
        memory=None,
        gamma=0.99,
        batch_size=32,
        nb_steps_warmup=1000,
        train_interval=1,
        memory_interval=1,
        target_model_update=10000,
        delta_range=None,
        delta_clip=np.inf,
        custom_model_objects=None,
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
        if dueling_type not in DUELING_TYPES:
            raise ArgumentError(f"dueling_type={dueling_type!r}; pass one of {DUELING_TYPES}.")
        check_is_keras(model, "model")
        self.nb_actions = check_count("nb_actions", nb_actions, 1)
        self.nb_steps_warmup = check_count("nb_steps_warmup", nb_steps_warmup)
        self.enable_double_dqn = enable_double_dqn
        self.enable_dueling_network, self.dueling_type = enable_dueling_network, dueling_type
        self._model, self._settled = model, False
        self._optimizer, self.measures = None, []
        if model.built:
            self._settle_model()
        self._take_memory(Field(str(np.min_scalar_type(self.nb_actions - 1)), ()))
        self.policy = EpsGreedyQPolicy() if policy is None else policy
        self.test_policy = GreedyQPolicy() if test_policy is None else test_policy

    def _settle_model(self):
        """Check the model's output and put the dueling head on, once it is built."""
        check_output(self._model, (self.nb_actions,), "a DQN's model")
        if self.enable_dueling_network:
            self._model = dueling(self._model, self.dueling_type)
        self._settled = True

    # keras-rl's objects -------------------------------------------------------------------------

    @property
    def model(self):
        """The Keras model that acts and learns, with the weights that training has reached."""
        self.sync()
        return self._model

    @property
    def target_model(self):
        """A Keras model with the target's weights; made when asked for."""
        return self._target_model("model", self._model)

    @property
    def optimizer(self):
        """The Keras optimizer; a learning rate set on it holds from the next update."""
        self.flush()
        return self._optimizer

    @property
    def policy(self):
        return self._policy

    @policy.setter
    def policy(self, policy):
        self._policy = self._adopt(policy, stream=100)

    @property
    def test_policy(self):
        return self._test_policy

    @test_policy.setter
    def test_policy(self, policy):
        self._test_policy = self._adopt(policy, stream=101)

    def _adopt(self, policy, stream):
        if not isinstance(policy, Policy):
            raise ArgumentError(
                f"{policy!r} is no keras-rl policy; pass one, such as EpsGreedyQPolicy(eps=0.1) of "
                "kerasrl_gpu.policy."
            )
        policy._set_agent(self)
        if hasattr(policy, "seed"):
            policy.seed(self.derived_seed(stream))
        return policy

    @property
    def layers(self):
        return self._model.layers[:]

    @property
    def metrics_names(self):
        names = ["loss", *(name for name, _ in self.measures), *self._policy.metrics_names]
        return names if self.processor is None else names + list(self.processor.metrics_names)

    def get_config(self):
        """The arguments that are plain values; models and processors are saved by themselves."""
        return {
            **super().get_config(),
            "nb_actions": self.nb_actions,
            "nb_steps_warmup": self.nb_steps_warmup,
            "enable_double_dqn": self.enable_double_dqn,
            "enable_dueling_network": self.enable_dueling_network,
            "dueling_type": self.dueling_type,
            "policy": config_of(self._policy),
            "test_policy": config_of(self._test_policy),
        }

    def parts(self):
        """See `Agent`."""
        return {**super().parts(), "policy": self._policy, "test_policy": self._test_policy}

    def networks(self):
        """See `Agent`."""
        return {"model": self._model}

    def acting(self):
        """See `Agent`."""
        return {"network": "model", "discrete": True}

    def passes(self):
        """See `Agent`."""
        inferring = [Pass("model")] * (2 if self.enable_double_dqn else 1)
        return [[*inferring, Pass("model", keeps=True, learns=True)]]

    @classmethod
    def from_config(cls, config, networks, objects, own):
        """An agent from `get_config`'s dict, its networks and its objects, both by name.

        Args:
            own: names of the networks that are as the constructor takes them; the others are as
                the agent made them, and have a dueling head already.
        """
        arguments = {**config, **objects, "model": networks["model"]}
        if "model" in own:
            return cls(**arguments)
        with_head = arguments.pop("enable_dueling_network")
        agent = cls(**arguments)
        agent.enable_dueling_network = with_head
        return agent

    # Learning -----------------------------------------------------------------------------------

    def compile(self, optimizer, metrics=()):
        """Get ready to train; compiled again, the optimizer starts with fresh slots.

        Args:
            optimizer: a keras optimizer or its name.
            metrics: names, functions of (y_true, y_pred) or keras metrics, reported with each
                update behind the loss; mean_q is always added. The list is not changed.
        """
        self.sync()
        self.measures = measures.resolve(metrics, losses.mean_q)
        self._optimizer = optimizers.fresh(optimizer, self._model)
        if self._settled:
            self._start({"model": self._model}, ("model",), {"model": self._optimizer})
        self.compiled = True

    def prepare(self, observation, state=None):
        """Build what depends on the first observation: pool, model, compiled calls."""
        seen, process = preparing.first_look(self, observation, state)
        if not self._settled:
            build_on(self._model, seen)
            self._settle_model()
        if self.trainer is None:
            self._start({"model": self._model}, ("model",), {"model": self._optimizer})
        net = Network(self._model, Inputs(self._model, seen, self.memory.window_length))
        rule = DQNRule(
            double=self.enable_double_dqn,
            delta=self.delta_clip,
            tau=self.target_model_update if self.target_model_update < 1 else None,
            measures=self.measures,
            nb_actions=self.nb_actions,
        )
        update = partial(
            dqn_update, net=net, optimizer=self.trainer.mirror.optimizers["model"], rule=rule
        )
        preparing.make_learner(
            self,
            {"model": net},
            seen,
            process,
            update=lambda what: update,
            act=lambda state, seen: net(state.online["model"], seen, training=False)[0],
        )

    def begin_run(self, env, training, resumed=False):
        """See `Agent`; also sees that the environment takes such actions."""
        space = getattr(env, "action_space", None)
        if not host.processes_actions(self):
            if getattr(space, "low", None) is not None:
                raise ArgumentError(
                    f"the environment's actions are numbers, {space}; a DQN chooses one of "
                    "nb_actions. Use DDPGAgent, or a Processor with process_action."
                )
            if getattr(space, "n", self.nb_actions) != self.nb_actions:
                raise ArgumentError(
                    f"nb_actions={self.nb_actions}, but the environment has {space.n}; pass "
                    f"nb_actions={space.n} and a model with as many outputs."
                )
        return super().begin_run(env, training, resumed)

    def forward(self, observation):
        """The action for an observation; inside `fit` also the queued update, in one call."""
        if not self.prepared:
            self.prepare(observation)
        if self.closing:
            return self._see_last(observation)
        if self.acts_separately:
            q_values = self.compute_q_values(self.memory.get_recent_state(observation))
        else:
            q_values = self._advance(observation)
        policy = self._policy if self.training else self._test_policy
        action = policy.select_action(q_values=q_values)
        self.recent_observation, self.recent_action = observation, action
        return action

    def backward(self, reward, terminal):
        """Store the step and learn when it is time; see keras-rl.

        Returns:
            one number for each of `metrics_names`; NaN while nothing is learned. Inside `fit` the
            numbers are brought over from the device when they are first read.
        """
        tail = list(self._policy.metrics)
        if self.processor is not None:
            tail += self.processor.metrics
        return self._backward(reward, terminal, tail)

    def _what(self):
        return ("model",) if self.step > self.nb_steps_warmup else ()

    def compute_batch_q_values(self, state_batch):
        """Q-values f32[B, A] of B states, each a list of `window_length` observations."""
        if not self.prepared:
            self.prepare(state_batch[0][-1], state_batch[0])
        return self._infer(state_batch)

    def compute_q_values(self, state):
        """Q-values f32[A] of one state."""
        return self.compute_batch_q_values([state])[0]

    def update_target_model_hard(self):
        """Give the target network the online network's weights."""
        self._copy_targets()

    def reset_states(self):
        """Forget the last observation and action."""
        self.recent_observation = self.recent_action = None

    # Files --------------------------------------------------------------------------------------

    def load_weights(self, filepath):
        """Read weights from a file of any name; the target gets them too.

        Of a checkpoint's directory, or a run's, the target's own weights are read, and nothing of
        its pool.

        Raises:
            CheckpointError: the directory has no whole checkpoint, or of other networks.
        """
        if os.path.isdir(filepath):
            return restoring.load_weights(self, filepath)
        files.load_weights(self.model, filepath)
        self.take_weights()
        self._copy_targets()

    def save_weights(self, filepath, overwrite=False):
        """Write the weights to a file of exactly this name."""
        files.save_weights(self.model, filepath, overwrite)
