"""Records, figures and tables of what was measured; TensorBoard and W&B.

The files of this folder are these.

    records.py          write measurements as lines of JSON, and read them back
    run_log.py          the folder of one training run
    track.py            write the scalars of a run to TensorBoard and W&B
    board.py            show TensorBoard in a notebook
    plots.py            figures in one style
    table.py            tables for notebooks and terminals
    recorded_runs.py    runs on other machines, for chapters that this machine cannot show
"""
