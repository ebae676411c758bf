"""The table of the methods, a line each: a recipe, its commands and the README have those of this table."""

from __future__ import annotations

from trtspec.methods.dflash import DFlashMethod
from trtspec.methods.draft_model import DraftModelMethod
from trtspec.methods.dspark import DSparkMethod
from trtspec.methods.eagle import EagleMethod
from trtspec.methods.eagle3 import Eagle3Method
from trtspec.methods.hybrid import Hybrid
from trtspec.methods.lookahead import LookaheadMethod
from trtspec.methods.medusa import MedusaMethod
from trtspec.methods.method import Method
from trtspec.methods.mtp import MtpMethod
from trtspec.methods.ngram import Ngram
from trtspec.methods.ngram_gpu import NgramGpu
from trtspec.methods.suffix import Suffix

METHODS: dict[str, type[Method]] = {
    "draft_model": DraftModelMethod,
    "ngram": Ngram,
    "hybrid": Hybrid,
    "suffix": Suffix,
    "eagle3": Eagle3Method,
    "eagle": EagleMethod,
    "medusa": MedusaMethod,
    "mtp": MtpMethod,
    "dflash": DFlashMethod,
    "dspark": DSparkMethod,
    "ngram_gpu": NgramGpu,
    "lookahead": LookaheadMethod,
}
"""The methods by their names."""
