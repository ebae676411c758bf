"""The images of the daemon, and where they come from."""

from __future__ import annotations

import json

from tests.fakes.docker.words import ROOT, fail


def images() -> list[str]:
    return (ROOT / "images").read_text().splitlines()


def image(words: list[str]) -> None:
    shown = {"{{.Id}}": "sha256:0123", "{{range .RepoDigests}}{{println .}}{{end}}": ""}
    inspect, option, template, name = words
    assert (inspect, option) == ("inspect", "--format"), words
    if name not in images():
        fail(f"Error response from daemon: No such image: {name}")
    print(shown[template] or f"{name.rpartition(':')[0]}@sha256:{'4567' * 16}\n")


def pull(words: list[str]) -> None:
    (name,) = words
    if (ROOT / "unknown_image").exists():
        fail(f"Error response from daemon: manifest for {name} not found: manifest unknown")
    print(f"{name.rpartition(':')[2]}: Pulling from nvidia/tritonserver", flush=True)
    for line in ("Pulling fs layer", "Download complete", "Pull complete"):
        for layer in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"):
            print(f"{layer}: {line}", flush=True)
    print(f"Status: Downloaded newer image for {name}", flush=True)
    add(name)


def add(name: str) -> None:
    with (ROOT / "images").open("a") as stream:
        stream.write(f"{without_tag(name)}\n")


def without_tag(name: str) -> str:
    """The tag before a digest is for people: nobody looks at it, nor has the image it afterwards."""
    known, _, digest = name.partition("@")
    return f"{known.rpartition(':')[0]}@{digest}" if digest else name


def tag(words: list[str]) -> None:
    source, name = words
    if without_tag(source) not in images():
        fail(f"Error response from daemon: No such image: {source}")
    add(name)


def image_environment() -> dict[str, str]:
    variables: dict[str, str] = json.loads((ROOT / "image_environment.json").read_text())
    return {"PATH": f"{ROOT / 'image_bin'}:/usr/bin:/bin", **variables}
