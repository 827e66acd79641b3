"""One training step on one device: precision, compilation, CUDA Graphs (chapters 04 to 07)."""
