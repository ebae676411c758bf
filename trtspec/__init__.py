"""trtspec: speculative decoding on NVIDIA's stack, from one recipe."""
