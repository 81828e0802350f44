"""``python -m torch_backplane``: the command ``backplane``."""

import sys

from torch_backplane.cli import main

sys.exit(main())
