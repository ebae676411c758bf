"""The example of `values.yaml`."""

from pathlib import Path

from trtspec.kubernetes.values import Engines, GpuChoice, HostResources, Times, Values
from trtspec.recipe.kubernetes import EmptyDir, Monitoring

_RECIPE = Path(__file__).parents[2] / "recipes/llama-3.1-8b-h100.yaml"

EXAMPLE = Values(
    name="llama",
    namespace=None,
    version="0",
    labels={},
    annotations={},
    image="registry.example.com/trtspec:0.1.0-1.2.1",
    image_pull_secrets=(),
    model_name="speculative_llm",
    digest="0" * 64,
    engines=Engines(
        recipe=_RECIPE.read_text(encoding="utf-8"),
        store="s3://example/engines",
        store_secret=None,
        platform="tensorrt_llm-1.2.1/sm90",
    ),
    server=None,
    group=None,
    kserve=False,
    replicas=1,
    scaling=None,
    max_surge=1,
    max_unavailable=0,
    volume=EmptyDir(),
    gpu=GpuChoice(product="NVIDIA-H100-80GB-HBM3", compute_major="9", count=1),
    resources=HostResources(cpu="8", cpu_limit=None, memory="27Gi", shared_memory="3Gi", disk="13Gi"),
    times=Times(grace_s=60, startup_failures=80, progress_s=1360),
    node_selector={},
    tolerations=(),
    runtime_class=None,
    priority_class=None,
    service_account=None,
    api_keys_secret=None,
    network_policy=True,
    egress_ports=(443,),
    monitoring=Monitoring(),
    gateway=None,
)
