"""keras-rl's `fit` and `test`: their arguments, and how long they go on."""

from __future__ import annotations

import warnings

from kerasrl_gpu import callbacks as cb
from kerasrl_gpu.errors import ArgumentError, CheckpointError, StateLost, check_count
from kerasrl_gpu.resume import comparing
from kerasrl_gpu.resume.report import Report
from kerasrl_gpu.run import Options, Run


def fit(
    agent,
    env,
    nb_steps,
    action_repetition=1,
    callbacks=None,
    verbose=1,
    visualize=False,
    nb_max_start_steps=0,
    start_step_policy=None,
    log_interval=10000,
    nb_max_episode_steps=None,
    *,
    resume=None,
    allow=(),
):
    """Train an agent for `nb_steps` environment steps.

    keras-rl's contract: on_train_begin, then for each episode on_episode_begin, its steps
    (on_step_begin, then on_action_begin and on_action_end for each repetition, on_step_end), one
    more `forward` and `backward` with the last observation, on_episode_end; on_train_end whatever
    happened, also after an exception, which is raised again. Ctrl-C ends a run after the step that
    it comes in, without one.

    Args:
        agent: compiled.
        env: a Gymnasium environment, or one with the old 4-value `step`.
        nb_steps: environment steps; the agent's step counter starts at 0, as in keras-rl. With
            `resume` it goes on, and ends when it reaches nb_steps.
        action_repetition: environment steps with one action, seen as one step.
        callbacks: keras-rl's, ours and Keras' own.
        verbose: 0 nothing, 1 a progress bar, 2 a line an episode.
        visualize: render at every action.
        nb_max_start_steps: up to so many steps at an episode's start, 0 included, are not learned
            from.
        start_step_policy: observation -> action for them; None draws from the action space.
        log_interval: steps between two summaries under verbose=1.
        nb_max_episode_steps: cut episodes there; a cut is a truncation, not an ending.
        resume: a run directory (its newest checkpoint counts) or one checkpoint: the agent, the
            environment and the callbacks go on exactly where that was saved. True goes on where
            this agent's last `fit` ended or what `agent.load` read. None starts at step 0, with
            the weights and the memory that the agent has.
        allow: names of what may differ from the checkpoint; see `agent.load`.

    Returns:
        History; its `completed` and `reason` say how the run ended, `resumed` what was resumed.

    Raises:
        NotCompiled: `compile` was not called.
        ArgumentError: an argument that cannot be honoured; resume=True with nothing to go on from.
        CheckpointError: there is nothing to resume, or it does not fit; says what and why.
    """
    options = _options(agent, action_repetition, nb_max_start_steps, nb_max_episode_steps)
    nb_steps = check_count("nb_steps", nb_steps)
    log_interval = check_count("log_interval", log_interval, 1)
    loggers = {1: [cb.TrainIntervalLogger(interval=log_interval)], 2: [cb.TrainEpisodeLogger()]}
    extra = loggers.get(min(verbose, 2), []) + ([cb.Visualizer()] if visualize else [])
    callbacks, params = _listed(callbacks, extra), {"nb_steps": nb_steps}
    allow = comparing.allowed(agent, allow)
    while True:
        left = _left(agent, resume, allow)
        run = Run(agent, env, callbacks, params, options, start_step_policy, left=left, allow=allow)
        if left is not None:
            run.history.resumed = agent.resumed
            _warn_of_nothing_left(agent.step, nb_steps)
            if verbose:
                print(agent.resumed)
        try:
            with run.running():
                while agent.step < nb_steps and not agent.stop_training:
                    run.step()
            return run.history
        except StateLost as error:
            resume = _newest(agent, resume, error)


def test(
    agent,
    env,
    nb_episodes=1,
    action_repetition=1,
    callbacks=None,
    visualize=True,
    nb_max_episode_steps=None,
    nb_max_start_steps=0,
    start_step_policy=None,
    verbose=1,
):
    """Play without learning; the agent's step counter is as before afterwards.

    Args:
        nb_episodes: how many.
        verbose: 0 nothing, else a line an episode.
        the others: see `fit`.

    Returns:
        History with one entry an episode.
    """
    options = _options(agent, action_repetition, nb_max_start_steps, nb_max_episode_steps)
    nb_episodes = check_count("nb_episodes", nb_episodes)
    extra = ([cb.TestLogger()] if verbose else []) + ([cb.Visualizer()] if visualize else [])
    callbacks, params = _listed(callbacks, extra), {"nb_episodes": nb_episodes}
    run = Run(agent, env, callbacks, params, options, start_step_policy, training=False)
    with run.running():
        while run.episode < nb_episodes and not agent.stop_training:
            run.step()
    return run.history


def _newest(agent, resume, error):
    """The checkpoint to go on from, now that the state is lost; raises the error without a new one.

    One that was gone on from already would lead to the same place.
    """
    newest = agent.runs.saved
    if newest is None or newest == resume:
        raise error
    warnings.warn(f"{error} It does: the state comes from {newest}.", stacklevel=3)
    return newest


def _left(agent, resume, allow):
    """Where to go on; None for a fresh start."""
    left = agent.runs.left
    if resume is None or resume is False:
        if left is not None and left.snapshot is not None:  # it was loaded, and never resumed
            warnings.warn(
                f"the agent was loaded at step {agent.step}, and fit starts at step 0 again; pass "
                "resume=True to go on there.",
                stacklevel=3,
            )
        return None
    if resume is not True:
        agent.load(resume, allow=allow)
    left = agent.runs.left
    if left is None and resume is not True:
        if agent.runs.nb_runs:
            raise CheckpointError(
                f"{resume} does not hold where its run stood: a warning said why when that ended. "
                "Weights and memory are loaded; leave resume out to train on from step 0."
            )
        return None  # it was saved before the first run began
    if left is None:
        raise ArgumentError(
            "resume=True goes on where this agent's last fit ended, and there was none; pass "
            "resume=path of a run directory or a checkpoint, or leave resume out."
        )
    if left.env is not None:  # it never left this process
        agent.runs.resumed = Report(step=agent.step)
    return left


def _options(agent, action_repetition, nb_max_start_steps, nb_max_episode_steps) -> Options:
    """The options as whole numbers; raises before anything has begun."""
    agent.check_compiled()
    if nb_max_episode_steps is not None:
        nb_max_episode_steps = check_count("nb_max_episode_steps", nb_max_episode_steps)
    return Options(
        check_count("action_repetition", action_repetition, 1),
        check_count("nb_max_start_steps", nb_max_start_steps),
        nb_max_episode_steps,
    )


def _warn_of_nothing_left(step, nb_steps):
    if step >= nb_steps:
        warnings.warn(
            f"the run is at step {step} already, and nb_steps={nb_steps} is where it ends; pass "
            f"nb_steps={step + nb_steps} to add {nb_steps}.",
            stacklevel=3,
        )


def _listed(callbacks, extra) -> list:
    """The user's callbacks, and the loggers that a run was asked for behind them."""
    if not isinstance(callbacks or [], (list, tuple)):
        raise ArgumentError(f"callbacks={callbacks!r}; pass a list of them, callbacks=[...].")
    return [*(callbacks or []), *extra]
