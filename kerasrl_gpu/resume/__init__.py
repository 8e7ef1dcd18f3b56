"""From an agent to a checkpoint and back; `checkpoint` writes and reads the files."""
