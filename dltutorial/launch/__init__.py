"""A function on N ranks of this machine; jobs under Slurm; the pocket cluster."""
