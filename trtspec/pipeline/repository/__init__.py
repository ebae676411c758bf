"""The Triton model repository."""

from trtspec.pipeline.repository.spec import RepositorySpec
from trtspec.pipeline.repository.writer import write_repository

__all__ = ["RepositorySpec", "write_repository"]
