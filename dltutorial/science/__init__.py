"""Deep learning for science: one file a case, each a ``Task`` for the training loop (``cases`` lists them)."""
