"""The adapter to Triton: the only part of trtspec that runs inside, and imports, its Python backend."""
