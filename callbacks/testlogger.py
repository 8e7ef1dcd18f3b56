"""One line for each episode of a test."""

from kerasrl_gpu.callbacks.base import Callback


class TestLogger(Callback):
    """Prints the return and the length of each test episode (`test(verbose=1)`)."""

    __test__ = False  # pytest takes every class named Test... for a group of tests

    def on_train_begin(self, logs=None):
        print(f"Test of {self.params['nb_episodes']} episodes")

    def on_episode_end(self, episode, logs=None):
        print(
            f"Episode {episode + 1}/{self.params['nb_episodes']}: "
            f"reward: {logs['episode_reward']:.3f}, steps: {logs['nb_steps']}"
        )
