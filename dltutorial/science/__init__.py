"""Deep learning for science: simulated data, readers of public layouts, and one network for each case."""
