"""The adapter to Triton, the only part of trtspec that runs in Triton's Python backend and imports it."""
