"""What TensorRT-LLM's `trtllm-build` makes of command lines and checkpoints, up to the network's inputs.

The argument is a checkout of TensorRT-LLM. Reads a JSON list of commands on stdin, each `{"folder": "...",
"arguments": [...]}`, and writes what came of each as the last line of stdout. NVIDIA's own model class loads
the checkpoint, and its builder decides on the sizes.
"""

from __future__ import annotations

import json
import os
import sys
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from tests.sources import nvidia


class Prepared(Exception):
    """The network would have these inputs."""


def prepare_inputs(model: Any, **inputs: Any) -> None:
    raise Prepared(inputs)


class Builder:
    """`trtllm-build`, which ends where TensorRT would begin."""

    def __init__(self) -> None:
        self.command = cast("Any", import_module("tensorrt_llm.commands.build"))
        self._net = import_module("tensorrt_llm._common").default_net
        self._build, self.command.build = self.command.build, self._until_inputs
        self.command.parallel_build = self._parallel_build
        import_module("tensorrt_llm.builder").Builder.create_builder_config = lambda *_, **__: None
        models = import_module("tensorrt_llm.models")
        models.PretrainedModel.prepare_inputs = models.EagleForCausalLM.prepare_inputs = prepare_inputs
        logger = import_module("tensorrt_llm.logger").logger
        logger.warning = lambda *words: self.warnings.append(" ".join(map(str, words)))
        self.warnings: list[str] = []
        self.ranks: list[dict[str, Any]] = []

    def asked(self, folder: str, arguments: list[str]) -> dict[str, Any]:
        self.warnings, self.ranks = [], []
        os.chdir(folder)
        sys.argv = ["trtllm-build", *arguments]
        self.command.main()
        return {"ranks": self.ranks, "warnings": self.warnings}

    def _parallel_build(
        self,
        config: Any,
        checkpoint: str,
        build: Any,
        output: str,
        workers: int,
        *others: Any,
        **options: Any,
    ) -> None:
        for rank in range(config.mapping.world_size):
            self.command.build_model(deepcopy(build), rank, checkpoint, config, **options)

    def _until_inputs(self, model: Any, build: Any) -> None:
        tensors = [name for name, _ in model.named_parameters()]
        try:
            self._build(model, build)
        except Prepared as prepared:
            (inputs,) = prepared.args
        self.ranks.append(
            {
                "class": type(model).__name__,
                "tensors": tensors,
                "inputs": inputs,
                "mode": build.speculative_decoding_mode,
                "plugins": self._net().plugin_config.model_dump(),
                "config": model.config.to_dict(),
            }
        )


def main() -> None:
    nvidia.install(Path(sys.argv[1]))
    builder, found = Builder(), []
    for each in json.load(sys.stdin):
        try:
            found.append(builder.asked(**each))
        except (SystemExit, Exception) as error:
            found.append({"error": f"{type(error).__name__}: {error}"})
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
