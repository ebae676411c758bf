"""The recipe's section `slurm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.backends.table import load
from trtspec.base.errors import RecipeError

RECIPE = "name: x\ntarget: {model: a/b}\ndraft: {model: a/c}\nhardware: {gpu: h200}\nslurm:\n"


@pytest.mark.parametrize(
    "time", ["'4:00:00'", "'90:00'", "'1-12'", "'1-12:30'", "'1-12:30:00'"], ids=lambda text: text
)
def test_times(tmp_path: Path, time: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"{RECIPE}  time: {time}\n")
    assert load(recipe).recipe.slurm.time == time.strip("'")


@pytest.mark.parametrize(
    ("line", "key", "problem", "repair"),
    [
        ("time: 4:00:00", "time", "YAML reads 4:00:00 as a number", None),
        ("time: 240", "time", "found the number 240, but text is wanted", 'put it in quotes: "240"'),
        ("time: '240'", "time", "a time as sbatch has it", None),
        ("partition: a b", "partition", "text without blanks", None),
        ("options: {wrap: x}", "options.wrap", "trtspec sets --wrap itself", "remove this line"),
        ("options: {--mem: 1G}", "options.--mem", "no long option", "write its name without the dashes"),
        ("gpu_options: {mem: }", "gpu_options.mem", "has no value", "write what sbatch takes"),
        ("gpu_options: {mem: [1]}", "gpu_options.mem", "found a list", None),
        ("container_mounts: ['/a,/b:/c']", "container_mounts.0", "two folders from the root", None),
        ("container_mounts: /a:/b", "container_mounts", "but a list is wanted", None),
        ("parition: gpu", "parition", "unknown key", "did you mean partition?"),
    ],
)
def test_wrong_values_in_the_slurm_section_are_refused_by_key(
    tmp_path: Path, line: str, key: str, problem: str, repair: str | None
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"{RECIPE}  {line}\n")
    with pytest.raises(RecipeError) as caught:
        load(recipe)
    (found,) = caught.value.findings
    assert found.subject == f"slurm.{key}"
    assert problem in found.problem
    assert repair is None or repair in (found.repair or "")
    assert found.line == 6
