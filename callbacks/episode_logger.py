"""One line for each training episode."""

import time

import numpy as np

from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.callbacks.readings import human_mean, human_steps
from kerasrl_gpu.callbacks.running import EpisodeSums, Spread


class TrainEpisodeLogger(Callback):
    """Prints one line at each episode's end (`fit(verbose=2)`), and one for the unfinished episode.

    Keeps running sums only, so an episode may last as long as it likes. Several episodes may be
    open at once; `logs["episode"]` tells which one a step belongs to.
    """

    def __init__(self):
        super().__init__()
        self.step = 0
        self._open = {}  # episode -> (EpisodeSums, Spread of actions)

    def on_train_begin(self, logs=None):
        self.train_start_s = time.perf_counter()
        self.metrics_names = list(self.agent.metrics_names)
        self.step = self.agent.step
        self._open = {}
        print(f"Training begins at step {self.step}")

    def on_train_end(self, logs=None):
        for episode in sorted(self._open):
            if self._open[episode][0].steps:
                print(self._line(episode) + " (unfinished)")
        self._open = {}
        print(f"Done after {time.perf_counter() - self.train_start_s:.3f} seconds")

    def on_episode_begin(self, episode, logs=None):
        self._open[episode] = EpisodeSums(self.metrics_names), Spread()

    def on_step_end(self, episode_step, logs=None):
        self.step += 1
        episode = logs["episode"]
        if episode not in self._open:  # a resumed run may start in the middle of an episode
            self.on_episode_begin(episode)
        sums, actions = self._open[episode]
        sums.add(logs)
        for value in _action_values(logs["action"]):
            actions.add(value)

    def on_episode_end(self, episode, logs=None):
        if episode in self._open:
            print(self._line(episode))
            del self._open[episode]

    def get_state(self) -> dict:
        """The sums of the episodes that are open."""
        return {
            episode: [part.get_state() for part in parts] for episode, parts in self._open.items()
        }

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called."""
        self._open = {}
        for episode, parts in state.items():
            self.on_episode_begin(episode)
            for part, saved in zip(self._open[episode], parts, strict=True):
                part.set_state(saved)

    def _line(self, episode: int) -> str:
        sums, actions = self._open[episode]
        sums.metrics.flush()
        duration_s = sums.duration_s
        fields = {
            "episode": episode + 1,
            "duration": f"{duration_s:.3f}s",
            "episode steps": sums.steps,
            "steps per second": f"{sums.steps / duration_s:.0f}",
            "episode reward": f"{sums.rewards.total:.3f}",
            "mean reward": sums.rewards,
            "mean action": actions,
            **{name: human_mean(mean, 6) for name, mean in sums.metrics.means().items()},
        }
        text = ", ".join(f"{name}: {value}" for name, value in fields.items())
        return f"{human_steps(self.step, self.params.get('nb_steps'))}: {text}"


def _action_values(action) -> list:
    """The numbers of an action, [] where it is none and no array of them."""
    if isinstance(action, int):
        return [action]
    try:
        array = np.asarray(action)
    except ValueError:  # a tuple of parts of different shapes
        return []
    return array.ravel().tolist() if array.dtype.kind in "biuf" else []
