"""The model of a deployment with one of `seeded_faults`; a test serves it as `model.py`.

The file `fault` beside it has the folder of these tests, and the name of the fault.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, Path(__file__).with_name("fault").read_text().splitlines()[0])
sys.path.insert(0, str(Path(__file__).parent))

import pytest

from tests.fakes import seeded_faults
from trtspec.serving.triton import engines, model

FAULT = Path(__file__).with_name("fault").read_text().splitlines()[1]


def load(values: Mapping[str, str], folder: Path) -> engines.EnginePair:
    pair = engines.load(values, folder)
    changed: engines.EnginePair = getattr(seeded_faults, FAULT)(pytest.MonkeyPatch(), pair)
    return changed


class TritonPythonModel(model.TritonPythonModel):
    load = staticmethod(load)
