"""Profile training: time, throughput, traces, the roofline, bottlenecks and memory (chapters 00 to 07 and 16).

The files of this folder are these.

    timing.py             measure how long functions take, in turns, as medians with their spread
    throughput.py         how fast the loader is alone, the step alone, and both together
    work.py               count the FLOP and the bytes of a step
    peaks.py              the peaks of this machine, measured once and cached
    probes.py             the experiments that measure the peaks
    memory.py             the memory of a training step, by a formula
    disk.py               how fast a file is read
    cpu_time.py           how much CPU time this process and its workers want
    trace.py              take a trace of training steps, or read one from a file
    events.py             the content of a trace, and arithmetic with time intervals
    trace_summary.py      time by range and by operator, idle time of the GPU
    trace_breakdown.py    where the time of a step goes
    timeline.py           an interactive timeline of a trace
    bottlenecks.py        find the bottleneck of a training run
    evidence.py           the measurements on which this decision is based
    report.py             its report: one finding for each candidate cause
"""
