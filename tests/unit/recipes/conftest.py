from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.recipes.published import write_cache


@pytest.fixture(scope="session")
def published_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_cache(folder)
    return folder


@pytest.fixture
def hub_cache(published_models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without network that has the models of the recipes in its Hub cache, and no TensorRT-LLM."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(published_models))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PATH", str(published_models))
    return published_models
