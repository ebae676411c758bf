"""Conversion of a synthetic Llama of 3 GB in 8 shards, against `cp -r` of the same folder on the same disk.

Every round runs each way once, after `sync` and with the source in the page cache; a ratio is that of two
times of one round, and the result has the median of the rounds. `cp` leaves what it wrote to the page cache,
and so does `convert` (the plan's runner puts a whole step on the disk before it gets its name); the ways
named "on the disk" both end with fsync of every file. Peak memory is the child process's own. JSON on
stdout. `--folder` chooses the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from trtspec.checkpoint.calibration import Amax, CalibratedRanges
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.checkpoint.tensors import SafetensorsFile, TensorEntry
from trtspec.checkpoint.verify import verify
from trtspec.models.families import FAMILIES
from trtspec.models.source import read_source

SHARDS = 8
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=3, metavar=("WAY", "SOURCE", "OUTPUT"))
    arguments = parser.parse_args()
    if arguments.child:
        way, source, output = arguments.child
        WAYS[way](Path(source), Path(output))
        print(peak_memory())
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source = Path(folder) / "source"
        make_source(source)
        dict(one_round(source))  # the first copy of new files is slower than the next
        rounds = [dict(one_round(source)) for _ in range(arguments.rounds)]
    json.dump(summary(rounds), sys.stdout, indent=2)
    print()


def one_round(source: Path) -> Iterator[tuple[str, tuple[float, int]]]:
    """Seconds and peak resident bytes of each way."""
    for way in WAYS:
        output = source.with_name("output")
        os.sync()
        command: list[str | Path] = [sys.executable, __file__, "--child", way, source, output]
        if way == "cp":
            command = ["cp", "-r", source, output]
        if way == "verify TP 4":
            subprocess.run([*command[:3], "TP 4", *command[4:]], check=True, stdout=subprocess.DEVNULL)
        start = time.perf_counter()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - start
        shutil.rmtree(output)
        yield way, (seconds, int(done.stdout.splitlines()[-1]) if done.stdout else 0)


def peak_memory() -> int:
    """Resident bytes at most since this program began; `ru_maxrss` would count the parent before it."""
    status = Path("/proc/self/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def summary(rounds: list[dict[str, tuple[float, int]]]) -> dict[str, Any]:
    result: dict[str, Any] = {"load": os.getloadavg(), "cores": os.cpu_count()}
    for way in rounds[0]:
        copy = "cp, on the disk" if way.endswith("on the disk") else "cp"
        ratios = [found[way][0] / found[copy][0] for found in rounds]
        result[way] = {
            "seconds": round(statistics.median(found[way][0] for found in rounds), 2),
            "ratio to cp": round(statistics.median(ratios), 2),
            "ratios": [round(ratio, 2) for ratio in ratios],
            "peak_mb": round(max(found[way][1] for found in rounds) / 1e6),
        }
    return result


def copied(source: Path, output: Path) -> None:
    subprocess.run(["cp", "-r", source, output], check=True)


def converted(tp_size: int, calibrated: bool = False) -> Callable[[Path, Path], None]:
    def run(source: Path, output: Path) -> None:
        convert(read_source(source), options(source, tp_size, calibrated), output)

    return run


def options(source: Path, tp_size: int, calibrated: bool) -> ConvertOptions:
    calibration = None
    if calibrated:
        weights = FAMILIES["LlamaForCausalLM"].weights(read_source(source))
        modules = [part.module for weight in weights if weight.linear for part in weight.parts]
        caches = [module for module in modules if module.endswith(("k_proj", "v_proj"))]
        calibration = CalibratedRanges(
            {module: Amax(0.1, 10.0) for module in modules}, dict.fromkeys(caches, 5.0), {}
        )
    return ConvertOptions("bfloat16", Mapping(tp_size), calibrated, calibrated, calibration)


def on_the_disk(run: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def run_and_sync(source: Path, output: Path) -> None:
        run(source, output)
        for file in output.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return run_and_sync


def verified(source: Path, output: Path) -> None:
    verify(read_source(source), options(source, 4, False), output)


def exported_by_modelopt(source: Path, output: Path) -> None:
    import torch
    from modelopt.torch.export import export_tensorrt_llm_checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(model, "llama", torch.bfloat16, output, inference_tensor_parallel=4)


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "cp": copied,
    "TP 1": converted(1),
    "TP 4": converted(4),
    "FP8": converted(1, calibrated=True),
    "FP8, TP 4": converted(4, calibrated=True),
    "verify TP 4": verified,
    "cp, on the disk": on_the_disk(copied),
    "TP 4, on the disk": on_the_disk(converted(4)),
    **({"ModelOpt TP 4": exported_by_modelopt} if find_spec("modelopt") else {}),
}


def make_source(folder: Path) -> None:
    """A model folder as transformers saves it, of random weights that repeat."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes = dict(tensors())
    weight_map: dict[str, str] = {}
    for number, names in enumerate(np.array_split(list(shapes), SHARDS), 1):
        file = folder / f"model-{number:05}-of-{SHARDS:05}.safetensors"
        write_shard(file, {str(name): shapes[name] for name in names})
        weight_map |= {str(name): file.name for name in names}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, vocabulary = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    keys = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(CONFIG["num_hidden_layers"]):
        rows = {"q": hidden, "k": keys, "v": keys, "o": hidden}
        for name, height in rows.items():
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", (height, hidden)
        for name in ("gate", "up"):
            yield f"model.layers.{layer}.mlp.{name}_proj.weight", (inner, hidden)
        yield f"model.layers.{layer}.mlp.down_proj.weight", (hidden, inner)
        for name in ("input", "post_attention"):
            yield f"model.layers.{layer}.{name}_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def write_shard(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    entries = [TensorEntry(name, "BF16", shape) for name, shape in shapes.items()]
    normal = np.random.default_rng(0).standard_normal(1 << 22, np.float32) * 0.02
    block = (normal.view("<u4") >> 16).astype("<u2").tobytes()
    with SafetensorsFile(file, entries) as shard:
        for entry in entries:
            for start in range(0, entry.size, len(block)):
                shard.write(block[: entry.size - start], shard.starts[entry.name] + start)


if __name__ == "__main__":
    main()
