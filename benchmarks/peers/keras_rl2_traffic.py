"""Host-to-device bytes of one keras-rl2 Atari step, by arithmetic: it has no counter to read.

Each step hands `predict_on_batch` the acting stack, then the batch of next states, and
`train_on_batch` the batch of states, the targets and the mask; Keras takes all of them as float32.
"""

import side

BATCH, WINDOW, PIXELS, ACTIONS, FLOAT_BYTES = 32, 4, 84 * 84, 4, 4


def main():
    side.parse(__doc__)
    stack_bytes = WINDOW * PIXELS * FLOAT_BYTES
    states_bytes = 2 * BATCH * stack_bytes
    targets_and_mask_bytes = 2 * BATCH * ACTIONS * FLOAT_BYTES
    total_bytes = states_bytes + stack_bytes + targets_and_mask_bytes
    side.report([total_bytes], "arithmetic", {"keras_rl2": "1.0.5"})


if __name__ == "__main__":
    main()
