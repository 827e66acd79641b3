"""How steps scale over ranks: the cost of collectives, clusters, a simulator, published runs, steps on real ranks."""
