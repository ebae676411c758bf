"""TensorRT's timing cache: the kernels that were measured in one build need not be in the next."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.cache import cache_folder


@dataclass(frozen=True, slots=True)
class TimingCache:
    """The cache of engines of one shape, built by one release for one kind of GPU.

    TensorRT refuses a cache of another version or of another GPU, H100 for H200 among them.
    """

    release: str
    gpu: str
    shape: str

    @property
    def file(self) -> Path:
        return cache_folder() / "timing" / f"{self.release}-{self.gpu}" / f"{self.shape}.cache"

    @contextmanager
    def options(self, folder: Path) -> Iterator[tuple[str, ...]]:
        """The options that read what is there and write what is new, which is kept if nothing is raised.

        Where the user's cache cannot be written, as in a container without a home, `folder` has it for once.
        """
        made = self.file.with_name(f".{self.file.name}.{uuid.uuid4().hex}")
        try:
            made.parent.mkdir(parents=True, exist_ok=True)
            made.touch()
        except OSError:
            yield ("--output_timing_cache", str(folder / "model.cache"))
            return
        try:
            known = ("--input_timing_cache", str(self.file)) if self.file.exists() else ()
            yield (*known, "--output_timing_cache", str(made))
            if made.stat().st_size:
                os.replace(made, self.file)
        finally:
            made.unlink(missing_ok=True)
