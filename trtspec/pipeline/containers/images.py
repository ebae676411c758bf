"""The images that are on this machine."""

from __future__ import annotations

from trtspec.base.errors import UnavailableError
from trtspec.base.progress import Progress
from trtspec.pipeline.containers.program import Program


def ensure_image(program: Program, image: str, watch: Progress) -> None:
    """Pulls an image that is not here; raises `UnavailableError` when that fails."""
    if program.run_if_there("image", "inspect", "--format", "{{.Id}}", image) is not None:
        return
    pulling, pulled = program.dialect.pulling, program.dialect.pulled
    layers: dict[str, bool] = {}
    with watch(f"pull {image}", None) as advance:
        try:
            with program.lines("pull", image) as said:
                for line in said:
                    if layer := pulling.match(line):
                        is_there = pulled is not None and bool(pulled.search(line))
                        layers[layer[1]] = layers.get(layer[1], False) or is_there
                        begun = f"{len(layers)} layers"
                        advance(0, f"{sum(layers.values())} of {begun}" if pulled else begun)
        except UnavailableError as error:
            if error.repair:
                raise
            repair = f"run {program.name} pull {image} to see more"
            raise UnavailableError(image, f"cannot be pulled: {error.problem}", repair) from None


def image_digest(program: Program, image: str) -> str | None:
    """Returns the digest by which a registry knows an image, `name@sha256:…`; None for one made here."""
    shown = "{{range .RepoDigests}}{{println .}}{{end}}"
    found = program.run_if_there("image", "inspect", "--format", shown, image)
    return next(iter((found or "").split()), None)
