"""What Triton says of a model whose process has ended, as its sources and a real server have it."""

ENDED_MODELS = [
    "Stub process 'speculative_llm_0_0' is not healthy.",
    "Failed to obtain the health mutex.",
    "Failed to process the request(s) for model instance 'm_0_0', message: Stub process is not healthy.",
    "Failed for execute the inference request. Model 'tensorrt_llm' is not ready.",
]
