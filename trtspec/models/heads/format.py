"""Defines what a published format of heads' folders says: which folders have it, and what they describe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from trtspec.models.heads.head import Form, HeadDescription
from trtspec.models.hf_config import HfConfig
from trtspec.models.tensors import SINGLE, Tensor


class HeadFormat(ABC):
    """A format of heads' folders."""

    form: ClassVar[Form]
    """Its name."""
    weights: ClassVar[str] = SINGLE
    """The file of the weights, unless an index names several."""

    @abstractmethod
    def recognises(self, config: HfConfig) -> bool:
        """Says whether a folder with this `config.json` has this format."""

    def refuse(self, config: HfConfig) -> None:  # noqa: B027
        """Raises ModelError for a head that trtspec does not read, whatever its weights are."""

    def name_of(self, tensor: str) -> str:
        """Returns the name that a description has for a tensor of the folder."""
        return tensor

    @abstractmethod
    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        """Returns the head of this configuration, with tensors that are not checked yet.

        Raises ModelError for a head that trtspec does not read.
        """
