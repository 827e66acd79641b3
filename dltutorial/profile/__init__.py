"""Profiling: traces, timelines, peaks, bottlenecks, memory."""
