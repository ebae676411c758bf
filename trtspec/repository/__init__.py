"""The Triton model repository."""

from trtspec.repository.spec import RepositorySpec
from trtspec.repository.writer import write_repository

__all__ = ["RepositorySpec", "write_repository"]
