"""What a server gets of the environment."""

from __future__ import annotations

import pytest

from trtspec.deploy.environment import for_server

NEEDED = {
    "PATH": "/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "CUDA_CACHE_PATH": "/tmp/cuda",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "OMPI_MCA_btl": "^openib",
    "PMIX_MCA_gds": "hash",
    "UCX_TLS": "all",
    "TRTLLM_ORCHESTRATOR": "1",
    "TLLM_LOG_LEVEL": "INFO",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "4",
    "PWD": "/home/me",
    "http_proxy": "http://proxy:3128/",
}
SECRETS = {
    "HF_TOKEN": "x",
    "HUGGING_FACE_HUB_TOKEN": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_ACCESS_KEY_ID": "x",
    "NGC_API_KEY": "x",
    "NVIDIA_API_KEY": "x",
    "DB_PASSWORD": "x",
    "MYSQL_PWD": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "/x.json",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "https_proxy": "http://me:word@proxy:3128/",
    "HARMLESS": "hf_abcdefghijklmnop",
}


def test_what_engines_need_comes_through() -> None:
    assert for_server(NEEDED) == NEEDED


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_do_not(name: str) -> None:
    assert for_server({name: SECRETS[name]}) == {}
