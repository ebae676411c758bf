"""What a distillation gives the tiny pair on texts of a kind that it was not trained on.

    python -m tests.perf.distill [--domain json] [--prompts 512] [--held-out 64] [--learning-rate 1e-3]
    python -m tests.perf.distill --method eagle3 --domain numpy --epochs 10  # a head for its target

Prompts are 250 characters from files of this environment's packages: C++ headers of torch, JSON, or numpy's
Python. Every fifth file is held out, with all that is in it. The target answers with 96 tokens; `trtspec
distill` learns them and measures on the held-out files, before and after, with 95 % intervals. A run that was
stopped goes on where it was, with `--output`. Exits with status 1 if a bar is missed. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.perf.bar import Bar

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny" / "recipe.yaml"
PACKAGES = Path(sysconfig.get_paths()["purelib"])
DOMAINS = {"headers": "torch/include/**/*.h", "json": "**/*.json", "numpy": "numpy/**/*.py"}
LARGEST, LENGTH, LEAST = 300_000, 250, 200  # bytes of a file, characters of a prompt
BAR = 1.2


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        output = options.output or Path(folder)
        found = measure(options, output)
    acceptance = found["acceptance"]
    if options.method == "draft_model":
        ratio = acceptance["of_drafted_ratio"]
        bar = Bar(
            f"{options.domain}: accepted of {found['num_draft_tokens']} drafted, after / before",
            round(ratio["value"], 3),
            BAR,
            at_least=True,
            spread=(round(ratio["low"], 3), round(ratio["high"], 3)),
        )
    else:  # A head that has learned nothing says nothing that is accepted.
        before, after = (acceptance[side]["tokens_per_round"] for side in ("before", "after"))
        name = f"{options.method}, {options.domain}: tokens a round, after / before"
        bar = Bar(name, round(after / before, 3), BAR, at_least=True)
    json.dump(
        {key: found[key] for key in ("learned", "held_out", "loss", "acceptance", "seconds")},
        sys.stdout,
        indent=2,
    )
    print()
    print(bar, file=sys.stderr)
    sys.exit(not bar.is_met)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=("draft_model", "eagle3"), default="draft_model")
    parser.add_argument("--domain", choices=DOMAINS, default="json")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, help="keeps everything here, to go on there")
    return parser.parse_args()


def measure(options: argparse.Namespace, output: Path) -> dict[str, Any]:
    files = sorted(path for path in PACKAGES.glob(DOMAINS[options.domain]) if path.stat().st_size < LARGEST)
    random.Random(1).shuffle(files)
    kept = len(files) // 5
    sides = {"held_out": (files[:kept], options.held_out), "learned": (files[kept:], options.prompts)}
    workloads = {}
    for seed, (name, (own, count)) in enumerate(sides.items()):
        workloads[name] = output / f"{options.domain}_{name}.jsonl"
        output.mkdir(parents=True, exist_ok=True)
        workloads[name].write_text("".join(json.dumps(row) + "\n" for row in prompts(own, count, seed)))
    words = [
        *("--workload", workloads["learned"], "--held-out", workloads["held_out"]),
        *("--max-tokens", options.tokens, "--epochs", options.epochs),
        *("--learning-rate", options.learning_rate, "--method", options.method),
        *("--output", output / "distilled", "--json"),
    ]
    start = time.monotonic()
    command = [sys.executable, "-m", "trtspec", "distill", str(RECIPE), *map(str, words)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(said)
    return found | {"seconds": round(time.monotonic() - start, 1)}


def prompts(files: Sequence[Path], count: int, seed: int) -> list[dict[str, str]]:
    """Returns pieces of files that begin with a line, each file as likely as another."""
    dice, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        file = dice.choice(files)
        text = file.read_text(encoding="utf-8", errors="replace")
        begin = text.find("\n", dice.randrange(max(1, len(text) - LENGTH))) + 1
        piece = text[begin : begin + LENGTH]
        if len(piece) >= LEAST:
            found[f"{file.relative_to(PACKAGES)}:{begin}"] = piece
    return [{"name": name, "prompt": piece} for name, piece in found.items()]


if __name__ == "__main__":
    main()
