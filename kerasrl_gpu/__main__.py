"""`python -m kerasrl_gpu`; see `cli`."""

import sys

from kerasrl_gpu.cli import main

sys.exit(main())
