"""Checkpoints: directories that are whole or ignored, and hold data only, never code.

    run/000007-step-12000/       number (the newest has the highest), then the step
        manifest.json            format, versions, the caller's JSON, size and digest of every file
        state.json               the state tree's plain values
        state.safetensors        its arrays
        pool/<name>.safetensors  one range of the replay pool each: "rows" u8[n, row bytes]
        COMMIT                   sha256 of manifest.json, written last

NumPy and safetensors are enough to read one; no backend is loaded.
"""

from kerasrl_gpu.checkpoint.directory import find
from kerasrl_gpu.checkpoint.manifests import run_of
from kerasrl_gpu.checkpoint.reading import Saved, open_newest, verify
from kerasrl_gpu.checkpoint.writing import Range, make_run, write

__all__ = ["Range", "Saved", "find", "make_run", "open_newest", "run_of", "verify", "write"]
