"""Training: one step, the loop, schedules, scores, a whole run."""
