"""Which cluster is meant, and what is said where there is none; nothing here listens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtspec.base.errors import ClusterError, UnavailableError
from trtspec.base.extras import how_to_install
from trtspec.cluster.kubernetes.cluster import UnreachableError, connect
from trtspec.cluster.kubernetes.objects import POD

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: here, context: {cluster: here, user: token}}
- {name: there, context: {cluster: here, user: token, namespace: serving}}
- {name: expired, context: {cluster: here, user: expired}}
- {name: broken, context: {cluster: nowhere, user: token}}
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
users:
- {name: token, user: {token: secret}}
- name: expired
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: "false", interactiveMode: Never}}
"""


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return file


@pytest.mark.parametrize(
    ("context", "namespace", "found"),
    [
        (None, None, ("here", "default")),
        ("there", None, ("there", "serving")),
        ("there", "other", ("there", "other")),
    ],
)
def test_a_context_and_its_namespace(
    context: str | None, namespace: str | None, found: tuple[str, str]
) -> None:
    cluster = connect(context, namespace)
    assert (cluster.context, cluster.namespace) == found
    assert cluster.server == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("context", "problem", "repair"),
    [
        ("elsewhere", "no such context in the kubeconfig", "there are broken, expired, here, there"),
        ("expired", "cannot get its credentials: exec: process returned 1", "kubectl get pods"),
        ("broken", "Expected object with name nowhere", "kubectl config view"),
    ],
)
def test_a_context_that_cannot_be_used(context: str, problem: str, repair: str) -> None:
    with pytest.raises(ClusterError) as error:
        connect(context, None)
    assert problem in error.value.problem
    assert repair in str(error.value.repair)


def test_no_kubeconfig_and_no_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match="there is no kubeconfig"):
        connect(None, None)


def test_a_pod_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    with pytest.raises(ClusterError, match="this pod's cluster: Service token file does not exist"):
        connect(None, None)


def test_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(UnavailableError) as error:
        connect(None, None)
    assert error.value.repair == how_to_install("cluster")


def test_a_broken_kubeconfig(kubeconfig: Path) -> None:
    kubeconfig.write_text("contexts: [")
    with pytest.raises(ClusterError, match="kubeconfig"):
        connect(None, None)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("http://127.0.0.1:9", "here: no cluster: 127.0.0.1:9 refuses connections"),
        ("http://nowhere.invalid:9", "here: no cluster: nowhere.invalid:9 has no address"),
    ],
)
def test_a_cluster_that_is_not_there(kubeconfig: Path, server: str, said: str) -> None:
    kubeconfig.write_text(KUBECONFIG.replace("http://127.0.0.1:9", server))
    with pytest.raises(UnreachableError) as error:
        connect(None, None).labelled(POD, {})
    assert str(error.value) == said
