"""Published figures as data files, each row with its source, and recorded runs of machines that CI lacks."""
