"""Profile training: throughput, traces and timelines, the roofline, bottlenecks, memory."""
