"""Records, figures and tables of what was measured; TensorBoard and W&B."""
