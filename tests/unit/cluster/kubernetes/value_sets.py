"""Sections `kubernetes:` of a recipe, which between them ask for everything that there is to ask for."""

from __future__ import annotations

VALUE_SETS = {
    "spread": """\
  replicas: 12
  max_surge: 0
  image: registry.example.com:5000/serving/trtspec:2026.11@sha256:{digest}
  grace_seconds: 86400
""".replace("{digest}", "ab" * 32),
    "scaled by Kubernetes": """\
  replicas: 2
  autoscaling: {max_replicas: 40, places: 0.7}
  monitoring: {labels: {release: prometheus}}
""",
    "scaled by KEDA": """\
  autoscaling: {by: keda, max_replicas: 8, kv_cache: 1, prometheus: "http://prometheus.monitoring:9090"}
  monitoring: {dashboard: false}
""",
    "engines on the node": """\
  cache: {kind: host_path, path: /mnt/nvme/engines}
  runtime_class: nvidia
  priority_class: serving
""",
    "engines on a claim that is there": """\
  cache: {kind: claim, name: engines-of-all}
  service_account: engine-reader
""",
    "engines on a claim of its own": """\
  cache: {kind: claim, storage_class: cephfs, size: 500Gi}
  resources: {cpu: "24", memory: 1.5Ti, shared_memory: 64Gi}
""",
    "labels that look like something else": """\
  labels: {team: "yes", "example.com/no": "0x10", cost: "1e3", x: "1_0e3", "app.kubernetes.io/name": theirs}
  annotations:
    "example.com/text": 'a "quoted" {{ .Values }} %s \\ \u00e9 \u2192 # : & *'
    "example.com/null": "null"
    "example.com/number": "-0o7"
    "trtspec/digest": theirs
  node_selector: {pool: "true", zone: "007"}
  tolerations: [dedicated, "example.com/spot"]
""",
    "secrets": """\
  name: llama
  secrets: {store: s3-reader, api_keys: openai-keys, image_pull: [registry, mirror]}
""",
    "nothing beside it": """\
  network_policy: false
  egress_ports: []
  monitoring: {pod_monitor: false, rules: false, dashboard: false}
""",
    "a gateway": """\
  gateway: {name: public, namespace: gateways, hostnames: [llm.example.com, "*.llm.example.com"]}
  egress_ports: [443, 9000]
""",
    "a gateway with an endpoint picker": """\
  gateway: {name: public, endpoint_picker: llama-epp}
  autoscaling: {max_replicas: 3}
""",
    "hosts": """\
  hosts: {gpus_per_host: 1, leader: [sh, -c, "exec lead"], worker: [sshd, -D]}
  autoscaling: {max_replicas: 3}
""",
    "KServe": """\
  form: kserve
  replicas: 3
  secrets: {image_pull: [registry]}
  gateway: {name: public}
""",
    "KServe, scaled": """\
  form: kserve
  autoscaling: {max_replicas: 9}
  tolerations: [spot]
""",
}
"""By a name for people."""
