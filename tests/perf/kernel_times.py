"""The forecast's steps beside steps that NVIDIA's aiconfigurator composes of kernels measured on the GPUs.

    make test-forecast
    python -m tests.perf.kernel_times --judge PYTHON [--seed N] [--points 600] [--fit]

PYTHON is that of an environment of aiconfigurator 0.12.0, which is no dependency: it wants numpy 2. Models,
GPUs, ranks, batches and contexts are drawn with a seed that is printed; two of the models are invented, and
none is one that the constants were fitted to. A verification of K drafts stands as `sequences x (K + 1)`
sequences which share out the context, as in `tests/data/kernel_times`. JSON on stdout; the table and the bars
on stderr; the exit status is 1 where a bar is missed. `--fit` makes the constants of H100 and H200 anew, of
all models that they are fitted to and without each of them (with scipy).
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.fakes.published import write_weights
from tests.perf.bar import Bar
from trtspec.backends.table import backend_named
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.forecast.roofline import OF_HOPPER, BatchLoad, HardwareShare, Network, step
from trtspec.models.published import CONFIGS
from trtspec.models.source import Source, read_source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import ModelFacts
from trtspec.pipeline.plan.resolved import EnginePlan
from trtspec.pipeline.plan.speed import chip, network
from trtspec.recipe.gpus import GPUS

FILE = Path(__file__).parents[1] / "data/kernel_times/decode_ms.csv"
JUDGE = Path(__file__).with_name("aiconfigurator_judge.py")
NAMES = {"8B": "nvidia/Llama-3.1-8B-Instruct-FP8", "405B": "nvidia/Llama-3.1-405B-Instruct-FP8"}
FITTED = (*NAMES.values(), "Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B-Instruct")
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers")
"""A model of the same sizes under another name is not held out either."""
JUDGED = re.compile("Llama|Qwen")
"""The judge does not know Mistral's."""
ROWS, TENSOR = (1, 3, 5, 11), (1, 2, 4, 8)
BARS = {True: (0.06, 0.15), False: (0.06, 0.18)}
"""The median and the worst error of plain steps and of verifications."""


@dataclass(frozen=True)
class Point:
    """A step on GPUs, and the milliseconds that the judge gives it."""

    model: str
    gpu: str
    tensor: int
    sequences: int
    context: int
    rows: int
    ms: float = 0.0
    engine: str = "trtllm"


def stored() -> list[Point]:
    """Returns the points of the file for TensorRT-LLM."""
    with FILE.open() as lines:
        rows = [list(row.values()) for row in csv.DictReader(lines)]
    points = [
        Point(NAMES[model], gpu, int(ranks), int(sequences), int(context), int(each), float(ms), engine)
        for model, gpu, ranks, sequences, context, each, ms, engine in rows
    ]
    return [point for point in points if point.engine == "trtllm"]


POINTS = stored()


def invented(choose: random.Random) -> dict[str, Any]:
    """Returns a Llama of sizes that nobody published."""
    heads, layers = choose.choice((24, 40, 48, 72)), choose.randrange(20, 100, 4)
    inner = 256 * round(heads * 128 * choose.uniform(2.5, 4) / 256)
    sizes = {"hidden_size": heads * 128, "num_attention_heads": heads, "num_hidden_layers": layers}
    return {**CONFIGS[NAMES["8B"]], **sizes, "intermediate_size": inner}


class Models:
    """The models of some configurations, each in a folder without data."""

    def __init__(self, folder: Path, configs: dict[str, dict[str, Any]]) -> None:
        self._sources: dict[str, Source] = {}
        self.folders: dict[str, Path] = {}
        for name, config in configs.items():
            path = folder / name.replace("/", "--")
            path.mkdir()
            write_weights(path, config)
            self._sources[name], self.folders[name] = read_source(path), path

    def network(self, point: Point) -> Network:
        return of_source(point.model, self._sources[point.model], point.tensor)


def of_source(name: str, source: Source, tensor: int) -> Network:
    """Returns a model in FP8, its KV cache too."""
    options = BuildOptions(max_batch_size=1, max_input_len=99, max_seq_len=100, max_num_tokens=100)
    checkpoint = ConvertOptions("bfloat16", Mapping(tensor, 1), fp8=True, fp8_kv_cache=True)
    model = ModelFacts(name, None, source)
    return network(EnginePlan(model, None, checkpoint, options, backend_named("tensorrt_llm")))


@cache
def _published(name: str, tensor: int) -> Network:
    with tempfile.TemporaryDirectory() as folder:
        write_weights(Path(folder), dict(CONFIGS[name]))
        return of_source(name, read_source(Path(folder)), tensor)


def error(point: Point, of: Network | None = None, share: HardwareShare = OF_HOPPER) -> float:
    """Returns the relative error of the forecast; a positive one is too slow."""
    gpu = replace(chip(GPUS[point.gpu]), share=share)
    load = BatchLoad(point.sequences, point.context)
    found = step(of or _published(point.model, point.tensor), gpu, load, point.rows)
    return found.seconds * 1e3 / point.ms - 1


def drawn(choose: random.Random, models: Models, count: int) -> Iterator[Point]:
    """Yields points of models that fit into the GPUs, as many plain ones as verifications."""
    names = list(models.folders)
    while count:
        gpu, tensor = choose.choice(("h100", "h200")), choose.choice(TENSOR)
        rows = 1 if count % 2 else choose.choice(ROWS[1:])
        sequences = round(2 ** choose.uniform(0, 7))
        point = Point(choose.choice(names), gpu, tensor, sequences, choose.randrange(1024, 4097), rows)
        try:
            weights = models.network(point).weight_bytes / tensor
        except ValueError:
            continue  # its heads do not divide so
        if weights < 0.9 * GPUS[gpu].memory_gib * 2**30:
            count -= 1
            yield point


def judged(python: str, points: Sequence[Point], folders: dict[str, Path]) -> list[Point]:
    """Returns the points that the judge has kernels for, with their milliseconds."""
    asked = json.dumps([{**asdict(point), "folder": str(folders[point.model])} for point in points])
    answer = subprocess.run([python, JUDGE], input=asked, capture_output=True, text=True, check=False)
    if answer.returncode:
        sys.exit(f"{python} cannot judge:\n{answer.stderr[-2000:]}")
    times = json.loads(answer.stdout.splitlines()[-1])
    return [replace(point, ms=ms) for point, ms in zip(points, times, strict=True) if ms]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", metavar="PYTHON", required=True)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--points", type=int, default=600)
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    choose = random.Random(options.seed)
    sizes = {tuple(CONFIGS[name][key] for key in SIZES) for name in FITTED}
    published = {
        name: dict(config)
        for name, config in CONFIGS.items()
        if tuple(config[key] for key in SIZES) not in sizes and JUDGED.search(name)
    }
    chosen = {name: published[name] for name in sorted(choose.sample(sorted(published), 6))}
    invented_ones = {f"invented-{number}": invented(choose) for number in (1, 2)}
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder), {**chosen, **invented_ones})
        points = judged(options.judge, list(drawn(choose, models, options.points)), models.folders)
        errors = [(point, error(point, models.network(point))) for point in points]
        fits = fitted(options.judge, Path(folder)) if options.fit else None
    for name in models.folders:
        print(f"{name:45} {_line([pair for pair in errors if pair[0].model == name])}", file=sys.stderr)
    bars = list(_bars(errors))
    print(*bars, sep="\n", file=sys.stderr)
    found = [{**asdict(point), "off_by": round(off, 4)} for point, off in errors]
    bars_as_json = [asdict(bar) for bar in bars]
    json.dump({"seed": options.seed, "points": found, "bars": bars_as_json, "fits": fits}, sys.stdout)
    print()
    return 0 if all(bar.is_met for bar in bars) else 1


def _line(errors: Sequence[tuple[Point, float]]) -> str:
    parts = []
    for is_plain, name in ((True, "plain"), (False, "verifications")):
        off = [value for point, value in errors if (point.rows == 1) == is_plain]
        if off:
            sizes = [abs(value) for value in off]
            parts.append(f"{name} {len(off)}: {median(sizes):.1%}, {min(off):+.1%} to {max(off):+.1%}")
    return "; ".join(parts)


def _bars(errors: Sequence[tuple[Point, float]]) -> Iterator[Bar]:
    for is_plain, (usual, worst) in BARS.items():
        sizes = [abs(value) for point, value in errors if (point.rows == 1) == is_plain]
        kind = "plain steps" if is_plain else "verifications"
        yield Bar(f"median error of {len(sizes)} {kind}", round(median(sizes), 4), usual, False)
        yield Bar(f"worst error of {kind}", round(max(sizes), 4), worst, False)
    for ranks, name in ((False, "one GPU"), (True, "several GPUs")):
        sizes = [abs(value) for point, value in errors if (point.tensor > 1) == ranks]
        bound = OF_HOPPER.errors[ranks]
        yield Bar(f"95 of 100 steps on {name} are off by", round(quantiles(sizes, n=20)[-1], 3), bound, False)


def fitted(python: str, folder: Path) -> dict[str, list[float]]:
    """Returns the constants that fit best, of all fitted models and without each; prints their errors."""
    place = folder / "fitted"
    place.mkdir()
    models = Models(place, {name: dict(CONFIGS[name]) for name in FITTED})
    grid = product(FITTED, ("h100", "h200"), TENSOR, (1, 4, 16, 64, 128), (1056, 2080, 4128), (1, 5, 11))
    fits = [Point(*each) for each in grid if _fits(models, Point(*each))]
    points = judged(python, fits, models.folders)
    networks = {(point.model, point.tensor): models.network(point) for point in points}
    found: dict[str, list[float]] = {}
    for left_out in (None, *FITTED):
        kept = [point for point in points if point.model != left_out]
        found[left_out or "all"] = values = _least(kept, networks)
        shown = [point for point in points if point.model == left_out] or points
        share = _share(values)
        off = [(point, error(point, networks[point.model, point.tensor], share)) for point in shown]
        print(f"without {left_out}: {[float(f'{v:.3g}') for v in values]}; {_line(off)}", file=sys.stderr)
    return found


def _fits(models: Models, point: Point) -> bool:
    if (point.model, point.tensor > 2) == ("Qwen/Qwen3-0.6B", True):
        return False  # times that are five times their neighbours'
    try:
        weights = models.network(point).weight_bytes / point.tensor
    except ValueError:
        return False
    return weights < 0.9 * GPUS[point.gpu].memory_gib * 2**30


def _share(values: Sequence[float]) -> HardwareShare:
    bandwidth, flops, link, layer_s, at_once_s, in_parts_s, moved = values
    return HardwareShare(bandwidth, flops, link, layer_s, (at_once_s, in_parts_s), moved, (0.0, 0.0), ())


def _least(points: Sequence[Point], networks: dict[tuple[str, int], Network]) -> list[float]:
    """Returns the constants with the least sixth power of the logarithms of forecast over judge."""
    import numpy as np
    from scipy.optimize import minimize

    def loss(logs: Any) -> float:
        share = _share(np.exp(logs).tolist())
        off = [error(point, networks[point.model, point.tensor], share) for point in points]
        return float((np.log1p(off) ** 6).mean() ** (1 / 6) + np.abs(np.log1p(off)).mean() / 2)

    now = OF_HOPPER
    start = [now.bandwidth, now.flops, now.link, now.layer_s, *now.all_reduce_s, now.moved]
    found = minimize(loss, np.log(start), method="Nelder-Mead", options={"maxfev": 600})
    return [float(value) for value in np.exp(found.x)]


if __name__ == "__main__":
    sys.exit(main())
