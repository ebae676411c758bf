"""A draft of Speculators, served by its own name: vLLM takes target and method from its configuration.

So does `maybe_override_with_speculators` (vllm/transformers_utils/config.py, 0.32).
"""

from __future__ import annotations

from pathlib import Path

from trtspec.base.errors import ModelError, TrtspecError, UnavailableError
from trtspec.models.download import explained
from trtspec.models.heads.speculators import KIND
from trtspec.models.model_file import has_file
from trtspec.models.source import HfConfig, read_hf_config
from trtspec.recipe.migration.drafts import LENGTH, METHOD, MODEL
from trtspec.recipe.migration.reading import FlagReading

_IN_NAMES = "speculator"
"""What publishers of this format have in the names of their models; others are not asked for on the Hub."""


def read_speculator(drafts: FlagReading, reading: FlagReading) -> None:
    """Makes a model of Speculators the draft, and its verifier the target.

    Raises TrtspecError if the configuration on the Hub cannot be read, because only it names them.
    """
    model, flag = str(reading.values.get("target.model", "")), reading.origins.get("target.model", "")
    config = _config(model)
    if config is None or KIND not in config.content:
        return
    described = config.section("speculators_config")
    verifier = described.section("verifier").get("name_or_path", str, "")
    if not verifier:
        raise TrtspecError(model, "is a draft of Speculators that names no verifier", _repair(model))
    proposals = described.get("proposal_methods", list, [])
    first = HfConfig(config.file, proposals[0] if proposals and isinstance(proposals[0], dict) else {})
    reading.values["target.model"] = verifier
    reading.say("target.model", f"{verifier}, which {model} is a draft for")
    if "serving.model_name" not in reading.values:
        reading.set("serving.model_name", model, flag)
    drafts.set(METHOD, config.get(KIND, str), flag)
    drafts.set(MODEL, model, flag)
    if length := first.get("speculative_tokens", int, None):
        drafts.set(LENGTH, length, flag)


def _config(model: str) -> HfConfig | None:
    """Returns a model's configuration; None if it has none here, and its name is not of this format."""
    file = Path(model).expanduser() / "config.json"
    if has_file(file):
        return read_hf_config(file)
    if _IN_NAMES not in model.lower():
        return None
    from huggingface_hub import hf_hub_download

    try:
        with explained(model, None):
            return read_hf_config(Path(hf_hub_download(model, "config.json")))
    except (ModelError, UnavailableError) as error:
        problem = f"is a draft of Speculators by its name, and its configuration cannot be read: {error}"
        raise TrtspecError(model, problem, _repair(model)) from None


def _repair(model: str) -> str:
    return f"name its target: vllm serve TARGET --spec-model {model}"
