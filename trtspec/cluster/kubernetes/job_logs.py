"""Brings what the pods of jobs have written to files of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.cluster.kubernetes.cluster import Cluster
from trtspec.cluster.kubernetes.job_object import CONTAINER
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.refusals import RefusedByCluster


class Logs:
    """Keeps how far the log of each pod has been read; a file is begun anew, since the cluster has it all."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._read: dict[str, str] = {}
        self._begun: set[Path] = set()

    def bring(self, pods: Sequence[Pod], file: Path) -> None:
        """Adds to a file what the pods of one job have written since the last call, the older pod first."""
        for pod in sorted(pods, key=lambda pod: (pod.created, pod.name)):
            if any(each.is_running or each.exit_code is not None for each in pod.containers):
                self._append(pod, file)

    def _append(self, pod: Pod, file: Path) -> None:
        last = self._read.get(pod.name)
        try:
            lines = self._cluster.log_since(pod.name, CONTAINER, last)
        except RefusedByCluster:
            return  # One that has just been made, or is gone, has none; it is asked for again.
        if not lines:
            return
        if file not in self._begun:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
            self._begun.add(file)
        with file.open("a", encoding="utf-8") as stream:
            if last is None:
                stream.write(f"pod {pod.name}{f' on {pod.node}' if pod.node else ''}:\n")
            stream.writelines(f"{line.text}\n" for line in lines)
        self._read[pod.name] = lines[-1].time
