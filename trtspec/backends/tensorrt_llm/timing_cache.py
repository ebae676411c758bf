"""TensorRT's timing cache: a build need not measure kernels that an earlier one has measured."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.cache import cache_folder


@dataclass(frozen=True, slots=True)
class TimingCache:
    """The cache of engines of one shape, built by one release for one kind of GPU.

    TensorRT refuses a cache of another version or of another GPU, an H100's on an H200 included.
    """

    release: str
    gpu: str
    shape: str

    @property
    def file(self) -> Path:
        return cache_folder() / "timing" / f"{self.release}-{self.gpu}" / f"{self.shape}.cache"

    @contextmanager
    def options(self, folder: Path) -> Iterator[tuple[str, ...]]:
        """The options of trtllm-build that read the cache and write a new one, kept if nothing is raised.

        If the user's cache folder cannot be written, as in a container without a home, the new one is written
        to `folder` and not used again.
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
