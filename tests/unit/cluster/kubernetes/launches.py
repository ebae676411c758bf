"""Builds for servers of others, as `trtspec build` leaves them for models of the Hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.servers_of_others import server_named
from trtspec.backends.launch import ServerLaunch
from trtspec.backends.shared.servers import LaunchInputs, LaunchModel
from trtspec.backends.table import loads
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.cluster.kubernetes.recipe_values import derive, from_launch
from trtspec.cluster.kubernetes.values import Values
from trtspec.methods.table import DraftModelMethod, Ngram
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.recipe.loader import LoadedRecipe

TARGET, DRAFT = "Qwen/Qwen3-32B", "Qwen/Qwen3-0.6B"
WEIGHTS = 64_000_000_000
RECIPE = """\
name: pair
target: {{model: {target}, parallel: {{tensor: 2}}}}
{draft}
engine: {{backend: {backend}}}
hardware: {{gpu: h100, count: 2}}
"""


def loaded(backend: str, section: str = "", target: str = TARGET) -> LoadedRecipe:
    """A recipe, with the section `kubernetes:` of these lines, if any."""
    # trtllm-serve takes a draft of the Hub at its latest commit alone.
    drafts = (
        f"draft: {{model: {DRAFT}}}" if server_named(backend).pins_drafts else "speculation: {method: ngram}"
    )
    text = RECIPE.format(backend=backend, target=target, draft=drafts)
    return loads((text + (f"kubernetes:\n{section}" if section else "")).encode(), Path("recipe.yaml"))


def launch(backend: str, target: str = TARGET) -> ServerLaunch:
    """What its build is started with."""
    server = server_named(backend)
    is_drafted = server.pins_drafts
    served = LaunchModel(
        target, None if target.startswith("/") else "9216db5781bf21249d130ec9da846c4624c16137"
    )
    wanted = LaunchInputs(
        release=server.release_of(None),
        names=(server.served_name(loaded(backend, target=target)),),
        target=served,
        draft=LaunchModel(DRAFT, "c1899de289a04d12100db370d81485cdf75e47ca") if is_drafted else None,
        method=DraftModelMethod(kind="draft_model") if is_drafted else Ngram(kind="ngram"),
        num_draft_tokens=4,
        checkpoint=ConvertOptions("bfloat16", Mapping(2)),
        options=BuildOptions(32, 8191, 8192, 8192),
        enable_chunked_context=True,
        kv_bytes=None,
    )
    return replace(server.launch(wanted), weights=WEIGHTS)


def values(backend: str, section: str = "", namespace: str | None = None, target: str = TARGET) -> Values:
    """The values of such a build's deployment."""
    found = loaded(backend, section, target)
    return derive(found, from_launch(found, launch(backend, target)), namespace)


SECTIONS = {
    "bare": "",
    "a folder of the node": """\
  replicas: 3
  max_surge: 0
  cache: {kind: host_path, path: /mnt/models}
  secrets: {hub: hf-token, image_pull: [registry]}
  monitoring: {labels: {release: prometheus}}
""",
    "a claim of its own, and a gateway": """\
  image: registry.example.com/mirror/server:1.0
  cache: {kind: claim, storage_class: cephfs}
  gateway: {name: public, endpoint_picker: picker}
  resources: {cpu: "16", memory: 256Gi, shared_memory: 32Gi}
  labels: {team: "yes"}
  annotations: {"example.com/text": 'a "quoted" {{ .Values }} $(x)'}
""",
    "nothing beside it": """\
  cache: {kind: claim, name: models-of-all}
  network_policy: false
  monitoring: {pod_monitor: false}
  service_account: somebody
""",
}
"""Sections that every such server takes."""
KEYS = "  secrets: {api_keys: keys, hub: hf-token}\n"
"""One that vLLM alone takes."""
