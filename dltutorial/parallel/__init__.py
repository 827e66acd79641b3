"""Many processes at once: a function on N ranks, and what they say to each other."""
