"""How steps scale over ranks: clusters, a simulator, published runs, steps on real ranks."""
