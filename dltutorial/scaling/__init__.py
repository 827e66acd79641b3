"""How steps scale over ranks: laws, a simulator, published runs."""
