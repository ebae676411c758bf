"""The images that docker's daemon has."""

from __future__ import annotations

from trtspec.docker.command import lines, run_if_there
from trtspec.errors import UnavailableError
from trtspec.progress import Progress


def ensure_image(image: str, watch: Progress) -> None:
    """Pulls an image that is not here; raises `UnavailableError` when that fails."""
    if run_if_there("image", "inspect", "--format", "{{.Id}}", image) is not None:
        return
    layers: dict[str, bool] = {}
    with watch(f"pull {image}", None) as advance:
        try:
            with lines("pull", image) as said:
                for line in said:
                    layer, _, state = line.partition(": ")
                    if state in _BEGUN | _DONE:
                        layers[layer] = layers.get(layer, False) or state in _DONE
                        advance(0, f"{sum(layers.values())} of {len(layers)} layers")
        except UnavailableError as error:
            if error.repair:
                raise
            repair = f"docker pull {image} says more"
            raise UnavailableError(image, f"cannot be pulled: {error.problem}", repair) from None


def image_digest(image: str) -> str | None:
    """Returns the digest by which a registry knows an image, `name@sha256:…`; None for one made here."""
    found = run_if_there("image", "inspect", "--format", "{{range .RepoDigests}}{{println .}}{{end}}", image)
    return next(iter((found or "").split()), None)


# What `docker pull` says of a layer where no terminal shows how much of it is there.
_BEGUN = frozenset({"Pulling fs layer", "Waiting", "Verifying Checksum", "Download complete"})
_DONE = frozenset({"Already exists", "Pull complete"})
