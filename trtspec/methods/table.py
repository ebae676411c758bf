"""The table of the methods, a line each: a recipe, its commands and the README have those of this table."""

from __future__ import annotations

from trtspec.methods.draft_model import DraftModelMethod
from trtspec.methods.heads import (
    DFlashMethod,
    DSparkMethod,
    Eagle3Method,
    EagleMethod,
    MedusaMethod,
    MtpMethod,
)
from trtspec.methods.lookahead import LookaheadMethod
from trtspec.methods.lookup import Hybrid, Ngram, NgramGpu, Suffix
from trtspec.methods.method import Method

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
