"""The TensorRT-LLM releases that build and serve engines, with what belongs to each.

From Triton's compatibility matrix (triton-inference-server/server, docs/introduction/compatibility.md). An
engine loads only in the TensorRT that built it, so a release names one image for both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """One TensorRT-LLM release."""

    version: str
    tensorrt: str
    cuda: str
    driver: int
    """The oldest branch of NVIDIA's driver that runs the image's CUDA without the forward compatibility
    package (CUDA Compatibility guide: 525 for CUDA 12, 580 for CUDA 13).
    """
    tags: tuple[str, ...]
    """The tags (YY.MM) of the Triton images that have the release, the one to use first."""
    digest: str = ""
    """The digest of `image` for x86-64; "" if it is unknown."""

    @property
    def image(self) -> str:
        return f"nvcr.io/nvidia/tritonserver:{self.tags[0]}-trtllm-python-py3"

    @property
    def pinned(self) -> str:
        """The image with its digest, where that is known: a tag may be another image tomorrow."""
        return f"{self.image}@{self.digest}" if self.digest else self.image


DEFAULT = "1.2.1"

RELEASES = {
    release.version: release
    for release in (
        # 26.06 is the newest image from before engines were removed from TensorRT-LLM's main branch; 26.07 is
        # the newest of all.
        Release(
            "1.2.1",
            "10.14.1.48",
            "13.1",
            580,
            ("26.06", "26.07", "26.05", "26.04"),
            "sha256:9882caef7253324b993cc9c4b955f264f1971745209718f55a2dc9807f8dd734",
        ),
        Release("1.2.0", "10.14.1.48", "13.1", 580, ("26.03",)),
        Release("1.1.0", "10.13.3.9", "13.0", 580, ("26.02", "26.01", "25.12")),
        Release("1.0.0", "10.11.0.33", "12.9", 525, ("25.10", "25.09")),
    )
}


def flaw(version: str) -> tuple[str, str] | None:
    """Returns why no engine can be built with this version, and the repair; None if one can."""
    if version in RELEASES:
        return None
    return f"found {version!r:.80}: {_reason(version)}", _repair(version)


def is_of(version: str, release: str) -> bool:
    """Says whether a TensorRT-LLM that reports `version` is of the release.

    The wheel in an image may call itself a candidate of it: 1.2.0rc8 in 26.03.
    """
    return version == release or version.startswith(f"{release}rc")


def release_of(version: str | None) -> Release:
    """The release of a recipe's `engine.release`; None stands for the default."""
    return RELEASES[version or DEFAULT]


def pinned(image: str) -> str:
    """Returns the image of a release with its digest, and any other as it is written."""
    return next((release.pinned for release in RELEASES.values() if release.image == image), image)


def of_tag(tag: str) -> Release | None:
    """The release in a Triton image, given its tag (YY.MM) or its whole name; None for an unknown one."""
    found = _TAG.search(tag)
    return next((release for release in RELEASES.values() if found and found[0] in release.tags), None)


# Triton's tags are year and month, which no TensorRT-LLM release looks like.
_TAG = re.compile(r"(?<![\d.])2[3-9]\.(?:0[1-9]|1[0-2])(?![\d.])")


def _reason(version: str) -> str:
    tag = _TAG.search(version)
    if release := of_tag(version):
        return f"that is a Triton image, whose TensorRT-LLM is {release.version}"
    if (tag and tag[0] == "25.11") or version.startswith("1.0.3"):
        return "NVIDIA's matrix and the 25.11 image disagree about what is in it, so it is not used"
    if tag:
        return "that is a Triton image, and none whose TensorRT-LLM builds engines for trtspec"
    numbers = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(.*)", version)
    if not numbers:
        return "that is no TensorRT-LLM release"
    if (int(numbers[1]), int(numbers[2])) >= (1, 3):
        return "TensorRT-LLM has no engines after 1.2 (trtllm-build and its runtime were removed)"
    if int(numbers[1]) < 1:
        return "releases before 1.0 are not supported"
    if re.search(r"[a-z]", numbers[3]):
        return "only final releases have a Triton image"
    return "that is no TensorRT-LLM release with a Triton image"


def _repair(version: str) -> str:
    release = of_tag(version) or RELEASES.get(version.removeprefix("v"))
    if release:
        return f"write release: {release.version}"
    return f"known releases are {', '.join(RELEASES)}"
