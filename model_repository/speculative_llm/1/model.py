"""The Triton edge of a target and its draft: text in, text out.

Every generated repository has this file, with a copy of `trtspec/serving` beside it, where all the code is.
"""

import sys
from pathlib import Path

# Triton puts this folder behind the environment's packages, where another version of trtspec may be
# installed.
sys.path.insert(0, str(Path(__file__).parent))

from trtspec.serving.triton.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
