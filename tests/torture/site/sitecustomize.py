"""For processes that the torture starts: watch their file operations if the environment asks for it."""

import os
import sys
from pathlib import Path

if "ARNO_TORTURE" in os.environ:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from operations import from_environment

    from_environment()
