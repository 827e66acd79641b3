"""Time to solution: predict how long a recipe takes to a target quality, run it, and say what it costs."""
