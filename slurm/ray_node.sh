#!/bin/bash
# What tune_ray.sbatch runs on each of its nodes: ray_node.sh FOLDER-<job> COMMAND… is Ray, and takes its files with it.
# Slurm leaves a cancelled job seconds (KillWait) to end in. What it could not remove, the next such job on the node does:
# the folders of the living are locked, and the dead hold no lock.
set -uo pipefail
folder=$1 && shift
sweep() {
    local old
    for old in "${folder%-*}"-*; do
        [[ -O $old && ! -L $old && ${old##*-} =~ ^[0-9]+$ ]] || continue # /tmp is everybody's
        (flock --nonblock 8 && rm -rf "$old") 2>/dev/null 8>>"$old/lock"
    done
}
# Shared, since nodes of a pocket cluster are one machine; twice, since another one may have swept in between.
own() { mkdir -p -m 700 "$folder" && [[ -O $folder && ! -L $folder ]] && exec 9>>"$folder/lock" && flock --shared 9 && [ -e "$folder/lock" ]; }

sweep
own || own || exit 2
"$@" &
ray=$!
# Again and again, for what Ray's processes write as they end.
trap 'kill $ray 2>/dev/null; exec 9>&-; for _ in {1..8}; do sweep; sleep 0.5; done; exit 143' TERM
wait $ray
status=$?
exec 9>&-
sweep
exit $status
