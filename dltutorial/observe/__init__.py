"""Watching: records, trackers, figures."""
