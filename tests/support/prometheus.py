"""Prometheus and its promtool, which judge what is exported and the rules on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


def tool(name: str) -> str:
    """The path of `prometheus` or `promtool`; the test is skipped where there is none."""
    if found := shutil.which(name):
        return found
    pytest.skip(f"{name} is not on PATH; Debian's package prometheus has it")


def judged(
    rules: Path, series: Mapping[str, str], expected: Mapping[str, Any]
) -> subprocess.CompletedProcess[str]:
    """What promtool says of a file of rules, given series of a value a minute and what is then `expected`.

    The keys of `expected` are those of promtool's test groups.
    """
    given = [{"series": name, "values": values} for name, values in series.items()]
    group = {"interval": "1m", "input_series": given, **expected}
    file = rules.with_name("test.yaml")
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [group]}))
    return subprocess.run([tool("promtool"), "test", "rules", str(file)], capture_output=True, text=True)


class Prometheus:
    """A Prometheus that scrapes one server every half second, with rules of these texts.

    The values that it scrapes have these `labels`.
    """

    def __init__(
        self,
        folder: Path,
        target: str,
        port: int,
        rules: str,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        (folder / "rules.yaml").write_text(rules)
        targets = {"targets": [target], "labels": labels or {}}
        scrape = {"job_name": "trtspec", "static_configs": [targets]}
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path: str, **query: str) -> Any:
        """The `data` of an answer; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(query)}") as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def value(self, expression: str) -> float | None:
        """The one value of an expression; None where there is none yet."""
        found = (self.get("query", query=expression) or {"result": []})["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        alerts = (self.get("alerts") or {"alerts": []})["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def end(self) -> None:
        self._process.terminate()
        deadline = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()
        self._log.close()
