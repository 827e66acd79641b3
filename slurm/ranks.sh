# Functions for the job scripts, which source this file in the course's folder.
#   print_settings                    print the nodes of the job, and what the site's file sets
#   newest_run NAME                   print the folder of the newest run of this name; fail if there is no such run
#   address_of_rank_0                 print the address of the job's first node
#   ranks_per_node                    print the number of ranks on each node
#   run_on_ranks NODES MODULE ARGS…   run `python -m MODULE ARGS…` on every rank of NODES nodes, and return the ranks' status
#
# Variables that a site's file (slurm/sites/*.sh) may set:
#   DLTUTORIAL_RANKS_PER_NODE    default: one rank for each GPU of the node, or one rank if there is no GPU
#   DLTUTORIAL_CONTAINER         the words before python, for example: apptainer exec --nv IMAGE
#   DLTUTORIAL_PYTHON            default: .venv/bin/python
#   DLTUTORIAL_MASTER_SUFFIX     what follows a node's name in its name on the fast network, for example: -ib
#   MASTER_ADDR, MASTER_PORT     default: an address of the first node, and a port made from the job's number

# `python` is an array of the words of the command, for example (apptainer exec image.sif python).
read -r -a python <<<"${DLTUTORIAL_CONTAINER:-} ${DLTUTORIAL_PYTHON:-.venv/bin/python}"

# Some sites submit jobs with --export=NONE. srun would inherit that, and the ranks would start without a PATH.
export SLURM_EXPORT_ENV=ALL

ranks_per_node() {
    echo "${DLTUTORIAL_RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}"
}

print_settings() {
    echo "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), $SLURM_JOB_NUM_NODES nodes: $SLURM_JOB_NODELIST"
    echo "$(ranks_per_node) ranks per node, $SLURM_CPUS_ON_NODE CPUs per node"
    env | grep -E '^(DLTUTORIAL|NCCL|FI|GLOO|OMP|TORCH)_|^(CUDA|ROCR)_VISIBLE_DEVICES=' | sort || true
}

newest_run() {
    # The time is part of a folder's name, so the newest run has the last name. If no name matches, the array has the
    # pattern itself, and no file is called like that.
    local configs=("${DLTUTORIAL_RUNS:-runs}/$1"-*/config.json)
    [ -e "${configs[-1]}" ] && dirname "${configs[-1]}"
}

address_of_rank_0() {
    local node
    read -r node < <(scontrol show hostnames "$SLURM_JOB_NODELIST") # rank 0 is on the first node
    if [ -n "${DLTUTORIAL_MASTER_SUFFIX:-}" ]; then
        echo "$node$DLTUTORIAL_MASTER_SUFFIX"
    else
        scontrol show node "$node" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p' # the address that Slurm itself uses
    fi
}

run_on_ranks() {
    local nodes=$1 module=$2 cpus_per_rank
    shift 2
    cpus_per_rank=$((SLURM_CPUS_ON_NODE / $(ranks_per_node)))
    if [ "$cpus_per_rank" -eq 0 ]; then cpus_per_rank=1; fi
    export OMP_NUM_THREADS=$cpus_per_rank
    export TQDM_MININTERVAL="${TQDM_MININTERVAL:-30}" # seconds between two lines of a progress bar in the job's output

    # Each rank gets the variables that torchrun would set, so every program for torchrun runs here, too. srun knows the
    # numbers of the ranks, so RANK and LOCAL_RANK are set below, in each rank. The port follows from the number of the
    # job, so two jobs on one node have different ports.
    export MASTER_ADDR="${MASTER_ADDR:-$(address_of_rank_0)}"
    export MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}"
    LOCAL_WORLD_SIZE=$(ranks_per_node)
    export LOCAL_WORLD_SIZE WORLD_SIZE=$((nodes * LOCAL_WORLD_SIZE))

    # --cpus-per-task     srun does not take this number from sbatch. Without it all ranks may share one core.
    # --kill-on-bad-exit  if one rank fails, srun ends the others, which would wait for it.
    # trap "" USR1        Ignore the signal until the program handles it. Python needs seconds to import torch before.
    # exec "$@"           "rank" is only a name for the inner shell. The words after it are the command, which is "$@" there.
    # shellcheck disable=SC2016 # each rank expands the variables in single quotes
    srun --nodes="$nodes" --ntasks="$WORLD_SIZE" --ntasks-per-node="$LOCAL_WORLD_SIZE" \
        --cpus-per-task="$cpus_per_rank" --kill-on-bad-exit=1 \
        bash -c 'trap "" USR1; export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec "$@"' rank \
        "${python[@]}" -m "$module" "$@"
}
