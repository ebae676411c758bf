"""The Triton edge of one engine: token ids in, token ids out.

A generated repository of the bls layout has this file in each engine's model, with a copy of
`trtspec/serving` beside it, where all the code is.
"""

import sys
from pathlib import Path

# Triton puts this folder behind the environment's packages, where another version of trtspec may be
# installed.
sys.path.insert(0, str(Path(__file__).parent))

from trtspec.serving.triton.engine_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
