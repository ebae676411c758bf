"""What objects of a deployment say about each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cluster.kubernetes.builds import RECIPES, STORE, stored, values
from tests.unit.cluster.kubernetes.rendered import rendered
from trtspec.backends.table import load, loads
from trtspec.base.errors import RecipeError
from trtspec.base.roles import Role
from trtspec.base.units import GIB
from trtspec.cluster.kubernetes.recipe_values import PORTS, RECIPE, STARTUP_S, from_build, name_of
from trtspec.cluster.kubernetes.values import HostResources
from trtspec.deployment.triton.launch import ENGINE_VARIABLES

LLAMA, LARGE, TINY = (
    RECIPES / "llama-3.1-8b-h100.yaml",
    RECIPES / "llama-3.1-405b-8xh200.yaml",
    RECIPES / "tiny/recipe.yaml",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(recipe: Path, section: str = "", namespace: str | None = None) -> dict[str, dict[str, Any]]:
    """The objects by kind, with a suffix of their names: `ConfigMap-dashboard`."""
    made = values(recipe, section, namespace)
    return {
        f"{each['kind']}{each['metadata']['name'].removeprefix(made.name)}": each for each in rendered(made)
    }


def spec(things: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the pods are made from."""
    found: dict[str, Any] = things["Deployment"]["spec"]["template"]["spec"]
    return found


def test_all_that_choose_pods_choose_these() -> None:
    things = found(LARGE, "  gateway: {name: g, endpoint_picker: p}\n")
    labels = things["Deployment"]["spec"]["template"]["metadata"]["labels"]
    chosen = things["Deployment"]["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= labels.items()
    # A Deployment's selector cannot change, and has had it from the beginning.
    assert chosen.pop("trtspec/track") == "stable"
    assert things["Service"]["spec"]["selector"] == chosen
    assert things["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == chosen
    for kind in ("PodMonitor", "InferencePool"):
        assert things[kind]["spec"]["selector"]["matchLabels"] == chosen
    assert things["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= chosen.items()


def test_a_recipe_takes_no_label_away_that_objects_are_chosen_by() -> None:
    section = "  labels: {app.kubernetes.io/instance: other, team: search}\n"
    labels = found(LLAMA, section)["Deployment"]["metadata"]["labels"]
    assert (labels["app.kubernetes.io/instance"], labels["team"]) == ("llama-3-1-8b-h100", "search")


def test_every_volume_that_is_mounted_is_there_and_what_is_written_is_an_empty_folder() -> None:
    pod = spec(found(LLAMA, "  secrets: {api_keys: keys}\n"))
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    server, pull = pod["containers"][0], pod["initContainers"][0]
    assert {mount["name"] for mount in server["volumeMounts"]} == set(volumes)
    assert {mount["name"] for mount in pull["volumeMounts"]} <= set(volumes)
    written = {mount["mountPath"] for mount in server["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"/tmp", "/dev/shm"}
    assert all("emptyDir" in volumes[name] for name in ("temporary", "shared-memory", "engines"))
    arguments = server["args"]
    paths = {mount["mountPath"] for mount in server["volumeMounts"]}
    for option in ("--output", "--api-keys"):
        value = Path(arguments[arguments.index(option) + 1])
        assert paths & {str(parent) for parent in value.parents}


def test_the_chart_has_what_trtspec_goes_by() -> None:
    (server,) = spec(found(LLAMA))["containers"]
    assert ENGINE_VARIABLES.items() <= {each["name"]: each["value"] for each in server["env"]}.items()
    assert {each["name"]: each["containerPort"] for each in server["ports"]} == asdict(PORTS)
    assert server["args"][:3] == ["trtspec", "deploy", str(RECIPE)]
    assert server["startupProbe"]["periodSeconds"] == STARTUP_S


def test_pods_have_no_rights() -> None:
    pod = spec(found(LLAMA))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_rendered_pods_refer_to_secrets_by_name_where_they_are_needed() -> None:
    pod = spec(found(LLAMA, "  secrets: {store: s3, api_keys: keys, image_pull: [registry]}\n"))
    (pull,), (server,) = pod["initContainers"], pod["containers"]
    assert pull["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert "envFrom" not in server
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert {"name": "api-keys", "secret": {"secretName": "keys", "defaultMode": 0o440}} in pod["volumes"]


@pytest.mark.parametrize(
    ("recipe", "gpus", "memory", "cpu", "cpu_limit"),
    [
        # All weights, 6 GiB, 4 and 1 more for each rank, and 1 GiB of shared memory.
        (LLAMA, 1, (9081200640 + 2969577472) / GIB + 6 + 2 * 5 + 1, "8", None),
        (LARGE, 8, (410118258688 + 7213504512) / GIB + 6 + 9 * 5 + 1, "22", None),
        (TINY, 0, 8, "4", "4"),
    ],
)
def test_a_rendered_server_requests_the_resources_that_its_engines_need(
    recipe: Path, gpus: int, memory: float, cpu: str, cpu_limit: str | None
) -> None:
    (server,) = spec(found(recipe))["containers"]
    requests, limits = server["resources"]["requests"], server["resources"]["limits"]
    assert requests.get("nvidia.com/gpu", 0) == limits.get("nvidia.com/gpu", 0) == gpus
    assert requests["memory"] == limits["memory"]
    assert 0 <= int(limits["memory"].removesuffix("Gi")) - memory < 2
    assert (requests["cpu"], limits.get("cpu")) == (cpu, cpu_limit)


@pytest.mark.parametrize(("asked", "gibs"), [("64Gi", 64), ("0.5Ti", 512), ("68719476736", 64)])
def test_a_rendered_server_counts_shared_memory_as_part_of_its_memory(asked: str, gibs: float) -> None:
    """Kubernetes counts what is in /dev/shm as the container's (its documentation, emptyDir)."""
    server, more = (
        spec(found(LLAMA, section))["containers"][0]["resources"]["limits"]["memory"]
        for section in ("", f'  resources: {{shared_memory: "{asked}"}}\n')
    )
    # 1 GiB, and 1 more for each rank, if nothing else is asked.
    assert int(more.removesuffix("Gi")) == pytest.approx(int(server.removesuffix("Gi")) - 3 + gibs, abs=1)


@pytest.mark.parametrize(("layout", "shared", "more"), [("in_process", 3, 20), ("bls", 23, 40)])
def test_draft_logits_fit_into_the_memory_and_in_the_bls_layout_into_that_which_is_shared(
    layout: str, shared: int, more: int
) -> None:
    text = f"{LLAMA.read_text()}serving: {{layout: {layout}}}\n"
    recipe = loads(text.encode(), Path("recipe.yaml")).recipe
    build = stored(load(LLAMA).recipe)

    def resources(logits: int) -> HostResources:
        target = replace(build.engines[Role.TARGET], draft_logits=logits)
        engines = {**build.engines, Role.TARGET: target}
        return from_build(recipe, text, replace(build, engines=engines), STORE, "0.1.0").resources

    without, with_ = resources(0), resources(20 * GIB)
    assert (without.shared_memory, with_.shared_memory) == ("3Gi", f"{shared}Gi")
    sizes = [int(found.memory.removesuffix("Gi")) for found in (without, with_)]
    assert sizes[1] - sizes[0] == more


@pytest.mark.parametrize(("cache", "least"), [("empty_dir", 417e9), ("host_path", 1)])
def test_a_pod_that_pulls_for_itself_goes_where_there_is_room(cache: str, least: float) -> None:
    (server,) = spec(found(LARGE, f"  cache: {cache}\n"))["containers"]
    disk = int(server["resources"]["requests"]["ephemeral-storage"].removesuffix("Gi"))
    assert least <= disk * GIB < least + 3 * GIB


def test_a_cluster_may_call_its_gpus_otherwise() -> None:
    pod = spec(found(LLAMA, "  gpu_product: H100-SXM\n"))
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == ["H100-SXM"]


@pytest.mark.parametrize(
    ("asked", "labels"),
    [
        (
            "{cloud.google.com/gke-accelerator: nvidia-h100-80gb}",
            {"cloud.google.com/gke-accelerator": ["nvidia-h100-80gb"]},
        ),
        ("false", {}),
    ],
)
def test_a_cluster_may_have_no_labels_of_gpu_feature_discovery(
    asked: str, labels: dict[str, list[str]]
) -> None:
    pod = spec(found(LLAMA, f"  gpu_labels: {asked}\n  node_selector: {{pool: gpus}}\n"))
    required = (
        pod["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    terms = [each for term in required.get("nodeSelectorTerms", []) for each in term["matchExpressions"]]
    assert {each["key"]: each["values"] for each in terms} == labels
    assert pod["nodeSelector"] == {"pool": "gpus"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_a_pod_has_the_time_that_its_requests_have() -> None:
    pod = spec(found(LLAMA, "  grace_seconds: 120\n"))
    (server,) = pod["containers"]
    assert server["args"][server["args"].index("--grace") + 1] == "120"
    waits = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    # `Server.stop` waits a second longer than the grace, and five for Triton.
    assert pod["terminationGracePeriodSeconds"] >= waits + 120 + 1 + 5


def test_large_engines_have_longer_to_load_and_an_update_longer_than_that() -> None:
    small, large = (found(recipe) for recipe in (LLAMA, LARGE))
    seconds = []
    for things in (small, large):
        probe = spec(things)["containers"][0]["startupProbe"]
        seconds.append(probe["failureThreshold"] * probe["periodSeconds"])
        assert things["Deployment"]["spec"]["progressDeadlineSeconds"] > seconds[-1]
    assert seconds[1] > seconds[0] + 1000


def test_an_autoscaler_has_the_replicas() -> None:
    things = found(LLAMA, "  replicas: 2\n  autoscaling: {max_replicas: 6, places: 0.5}\n")
    assert "replicas" not in things["Deployment"]["spec"]
    scaler = things["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "llama-3-1-8b-h100",
    }
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    targets = {
        metric["pods"]["metric"]["name"]: metric["pods"]["target"]["averageValue"]
        for metric in scaler["metrics"]
    }
    assert list(targets.values()) == ["0.5", "0.85"]
    recorded = {
        rule.get("record") for group in things["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]
    }
    assert set(targets) <= recorded


def test_keda_asks_for_the_servers_of_this_deployment() -> None:
    section = '  autoscaling: {by: keda, max_replicas: 6, prometheus: "http://p:9090"}\n'
    things = found(LLAMA, section, "llm")
    (endpoint,) = things["PodMonitor"]["spec"]["podMetricsEndpoints"]
    (label,) = endpoint["relabelings"]
    for trigger in things["ScaledObject"]["spec"]["triggers"]:
        assert (
            f'{{namespace="llm", {label["targetLabel"]}="{label["replacement"]}"}}'
            in (trigger["metadata"]["query"])
        )
    alerts = [rule for group in things["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
    (down,) = (rule for rule in alerts if rule.get("alert") == "TrtspecDown")
    wanted = re.search(r'job=~"(.*)"', down["expr"])
    assert wanted
    assert re.fullmatch(wanted[1], label["replacement"])
    with pytest.raises(RecipeError, match=r"kubernetes.namespace: is missing"):
        found(LLAMA, section)


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    if not (promtool := shutil.which("promtool")):
        pytest.skip("needs promtool")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(found(LLAMA)["PrometheusRule"]["spec"]))
    result = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr + result.stdout


def test_each_deployment_has_a_dashboard_of_its_own() -> None:
    one, other = (found(recipe)["ConfigMap-dashboard"] for recipe in (LLAMA, LARGE))
    assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert not one["data"].keys() & other["data"].keys()
    ids = {json.loads(text)["uid"] for each in (one, other) for text in each["data"].values()}
    assert len(ids) == 2


def test_a_route_leads_to_the_service_or_to_a_pool() -> None:
    plain = found(LLAMA, "  gateway: {name: public, hostnames: [llm.example.org]}\n")
    (rule,) = plain["HTTPRoute"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    ports = {port["port"]: port["name"] for port in plain["Service"]["spec"]["ports"]}
    assert (backend["name"], ports[backend["port"]]) == (plain["Service"]["metadata"]["name"], "openai")
    picked = found(LLAMA, "  gateway: {name: public, endpoint_picker: picker}\n")
    (rule,) = picked["HTTPRoute"]["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == picked["InferencePool"]["metadata"]["name"]
    assert picked["InferencePool"]["spec"]["targetPorts"] == [{"number": 9000}]


def test_kserve_has_the_same_pod() -> None:
    plain, kserve = found(LARGE), found(LARGE, "  form: kserve\n")
    pod, runtime = spec(plain), kserve["ServingRuntime"]["spec"]
    predictor = kserve["InferenceService"]["spec"]["predictor"]
    assert not {"Deployment", "Service"} & kserve.keys()
    (server,), (theirs,) = pod["containers"], runtime["containers"]
    assert theirs == {**server, "name": "kserve-container", "args": theirs["args"]}
    for key, value in pod.items():
        if key not in ("containers", "volumes", "initContainers"):
            assert (predictor | runtime)[key] == value, key
    assert predictor["model"]["runtime"] == kserve["ServingRuntime"]["metadata"]["name"]
    selector = kserve["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= predictor["labels"].items()


def test_a_server_may_span_hosts() -> None:
    section = "  hosts: {gpus_per_host: 4, leader: [lead], worker: [work]}\n"
    things = found(LARGE, f"{section}  autoscaling: {{max_replicas: 2}}\n")
    whole = spec(found(LARGE))
    assert "Deployment" not in things
    groups = things["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    assert groups["size"] == 2
    leader, worker = groups["leaderTemplate"], groups["workerTemplate"]
    (leading,), (working,) = leader["spec"]["containers"], worker["spec"]["containers"]
    assert (leading["args"], working["args"]) == (["lead"], ["work"])
    for each in (leading, working):
        assert each["resources"]["limits"]["nvidia.com/gpu"] == 4
        assert each["securityContext"] == whole["containers"][0]["securityContext"]
    assert leader["spec"]["initContainers"] == worker["spec"]["initContainers"] == whole["initContainers"]
    memory = [
        int(each["resources"]["limits"]["memory"].removesuffix("Gi"))
        for each in (leading, whole["containers"][0])
    ]
    assert memory[0] < 0.6 * memory[1]
    assert not {"readinessProbe", "livenessProbe", "startupProbe", "ports"} & working.keys()

    def chooses(kind: str, template: dict[str, Any]) -> bool:
        chosen = things[kind]["spec"].get("podSelector") or things[kind]["spec"]["selector"]
        labels: dict[str, str] = chosen.get("matchLabels", chosen)
        own: dict[str, str] = template["metadata"]["labels"]
        return labels.items() <= own.items()

    for kind in ("Service", "PodMonitor"):
        assert chooses(kind, leader)
        assert not chooses(kind, worker)
    for kind in ("NetworkPolicy-group", "PodDisruptionBudget"):
        assert chooses(kind, leader)
        assert chooses(kind, worker)
    # LeaderWorkerSet's documentation: a headless Service of its name, or of the name of each leader.
    network = things["LeaderWorkerSet"]["spec"].get("networkConfig", {})
    is_shared = network.get("subdomainPolicy", "Shared") == "Shared"
    name = things["LeaderWorkerSet"]["metadata"]["name"]
    assert things["Service"]["metadata"]["name"] != (name if is_shared else f"{name}-0")
    # It pulls the build by itself, and finds the leader by its name.
    among, outward = things["NetworkPolicy-group"], things["NetworkPolicy"]["spec"]["egress"]
    assert all(each in among["spec"]["egress"] for each in outward)
    target = things["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b-h100", "llama-3-1-8b-h100"),
        ("405b", "trtspec-405b"),
        ("a__b.", "a-b"),
        ("x" * 100, "x" * 33 + "-"),
    ],
)
def test_a_name_is_one_of_kubernetes(name: str, expected: str) -> None:
    found = name_of(name)
    assert found.startswith(expected)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", found)
    assert len(found) <= 40


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("  image: trtspec\n", "kubernetes.image: trtspec is another image every day"),
        ("  image: trtspec:latest\n", "name a tag other than latest"),
        ("  replicas: 3\n  autoscaling: {max_replicas: 2}\n", "max_replicas: 2 is less than"),
        ("  autoscaling: {by: keda, max_replicas: 2}\n", "prometheus: is missing: KEDA asks"),
        ("  autoscaling: {max_replicas: 2, prometheus: x}\n", "prometheus: is not used"),
        (
            "  hosts: {gpus_per_host: 1, leader: [a], worker: [b]}\n",
            "hardware has 1 x h100",
        ),
        ("  name: 8b\n", "kubernetes.name: found '8b'; allowed: at most 40 lower-case letters"),
        ("  namespace: Llm\n", "allowed: lower-case letters, digits"),
        ("  cache: {kind: host_path, path: there}\n", "allowed: a folder from the root"),
        ("  cache: volume\n", "allowed: empty_dir, host_path, claim"),
        ("  tolerations: gpu\n", "found the text 'gpu', but a list is wanted"),
        ("  resources: {memory: much}\n", "allowed: a quantity"),
    ],
)
def test_wrong_values_in_the_kubernetes_section_are_refused_by_key(section: str, said: str) -> None:
    file = Path("recipe.yaml")
    file.write_text(f"{LLAMA.read_text()}kubernetes:\n{section}")
    with pytest.raises(RecipeError) as error:
        load(file)
    (finding,) = error.value.findings
    assert said in f"{finding.subject}: {finding.problem}; {finding.repair}"
