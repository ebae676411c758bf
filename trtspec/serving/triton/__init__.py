"""The Triton edge: the only part of trtspec that runs inside Triton's Python backend, and knows of it."""
