"""Tuning decides with numbers alone."""

import subprocess
import sys


def test_tuning_loads_no_backend_and_no_plots():
    code = (
        "import sys, kerasrl_gpu.tuning, kerasrl_gpu.tuning.curve\n"
        "loaded = {'keras', 'jax', 'tensorflow', 'matplotlib', 'rl'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
