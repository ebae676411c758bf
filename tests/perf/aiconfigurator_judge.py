"""Composes steps of the kernels in aiconfigurator's tables; it runs in an environment of that package.

It reads a JSON list of points with the folder of each model from stdin, and writes the milliseconds of each
as the last line of stdout, null for one that the tables do not have.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from aiconfigurator.cli import api
from aiconfigurator_core.sdk import perf_database

# They would read every table's YAML for each point.
for name in ("get_supported_databases", "get_latest_database_version"):
    once = functools.cache(getattr(perf_database, name))
    for module in (perf_database, api):
        setattr(module, name, once)

_SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm"}


def milliseconds(point: dict[str, Any]) -> float | None:
    try:
        found = api.cli_estimate(
            point["folder"],
            _SYSTEMS[point["gpu"]],
            mode="static_gen",
            backend_name=point["engine"],
            isl=max(point["context"] // point["rows"] - 1, 1),
            osl=2,
            batch_size=point["sequences"] * point["rows"],
            tp_size=point["tensor"],
            gemm_quant_mode="fp8_static",
            kvcache_quant_mode="fp8",
            fmha_quant_mode="fp8",
            database_mode="SILICON",
        )
        return float(found.tpot)
    except Exception as error:
        print(f"{point}: {error!r:.200}", file=sys.stderr)
        return None


if __name__ == "__main__":
    print(json.dumps([milliseconds(point) for point in json.load(sys.stdin)]))
