"""What `trtspec build --on slurm` hands over to sbatch, to the letter; UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec.cluster.jobs import look, plan_jobs
from trtspec.cluster.slurm import SlurmScheduler, sbatch_words
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.store.store import Store

RECIPE = """
name: llama-h200
target:
  model: ./target
  parallel: {tensor: 2}
  quantization: {weights: fp8, calibration: {dataset: texts.txt}}
draft: {model: ./draft, dtype: float16}
engine: {max_batch_size: 4, max_input_len: 3200, max_seq_len: 4800}
hardware: {gpu: h200, count: 4}
"""
SECTIONS = {
    "defaults": "",
    "bare": """
slurm:
  partition: gpu
  cpu_partition: cpu
  account: ml-inference
  time: '1-12:00:00'
  gpu_type: nvidia_h200
  options: {mem: 200G, cpus-per-gpu: 16, exclusive: true, overcommit: false, mail-user: "o'neil $HOME"}
  gpu_options: {constraint: nvlink&ib}
""",
    "pyxis": """
slurm:
  partition: gpu
  gpu_type: any
  container_image: registry.example#team/trtspec:1.2.1
  container_mounts: ['/scratch:/scratch:ro']
""",
    "pmix": """
slurm:
  container_image: registry.example#team/trtspec:1.2.1
  mpi: pmix
  options: {cpus-per-task: 16}
""",
}


@pytest.mark.parametrize("name", SECTIONS)
def test_scripts(llama_folder: Callable[..., Path], tmp_path: Path, name: str) -> None:
    llama_folder("target", hidden_size=64, intermediate_size=96, max_position_embeddings=8192)
    llama_folder("draft", max_position_embeddings=8192)
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    recipe, store = tmp_path / "100% llama.yaml", Store(str(tmp_path / "store"))
    recipe.write_text(RECIPE + SECTIONS[name])
    made = make_plan(recipe, output=tmp_path / "build/llama", store=store)
    jobs = plan_jobs([look(store, made)], "s3://engines", shares_files=True)
    slurm = SlurmScheduler(
        "/opt/trtspec/bin/python", {"HF_HUB_CACHE": Path("/hub"), "TRTSPEC_CACHE": Path("/cache")}
    )
    written = "\n".join(slurm.script(job) for job in jobs)
    behind = next(word for word in sbatch_words(jobs[-1], ["17", "19"]) if word.startswith("--dependency"))

    written = f"{written}\n\n# the pair behind jobs 17 and 19\n{behind}\n".replace(str(tmp_path), "/shared")
    written = re.sub(r"--key [0-9a-f]{64}", "--key KEY", written)
    written = re.sub(r"(--job-name=trtspec-\w+-)[0-9a-f]{16}", r"\1KEY", written)

    golden = Path(__file__).parent / "slurm" / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(written)
    assert written == golden.read_text()
