# Sourced by the job scripts, on the first node of a job.
#   in_force                     print what this job runs with
#   of_this_start NAME           print NAME; if Slurm starts the job anew, with the number of the start
#   refuse_taken PATH…           end the job if one of them is there already
#   start_ranks N MODULE ARGS…   become srun, which runs `python -m MODULE ARGS…` on every rank of N nodes
# What a site may set (slurm/sites/*.sh):
#   DLTUTORIAL_RANKS_PER_NODE    default: one for each GPU of the job's node, else one
#   DLTUTORIAL_LAUNCHER          torchrun (default): one torchrun per node starts the ranks · srun: srun starts each
#   DLTUTORIAL_CONTAINER         words before python, such as: apptainer exec --nv IMAGE
#   DLTUTORIAL_PYTHON            default: .venv/bin/python
#   DLTUTORIAL_MASTER_SUFFIX     what makes a node's name, as Slurm lists it, that of its fast network

export SLURM_EXPORT_ENV=ALL # sbatch --export=NONE, a rule of some sites, would have srun start ranks without a PATH

refuse() {
    echo "$*" >&2
    exit 2
}
case ${DLTUTORIAL_LAUNCHER:-torchrun} in
    torchrun | srun) ;;
    *) refuse "DLTUTORIAL_LAUNCHER=$DLTUTORIAL_LAUNCHER is no launcher; choose torchrun or srun, or unset it" ;;
esac
[[ ${MAX_RESTARTS:-50} =~ ^[0-9]{1,6}$ ]] || refuse "MAX_RESTARTS=$MAX_RESTARTS is no number of restarts; unset it"
[[ ${DLTUTORIAL_RANKS_PER_NODE:-1} =~ ^[1-9][0-9]{0,4}$ ]] ||
    refuse "DLTUTORIAL_RANKS_PER_NODE=$DLTUTORIAL_RANKS_PER_NODE is no number of ranks; give 1 or more, or unset it"

ranks_per_node() { echo "${DLTUTORIAL_RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}"; }

in_force() {
    echo "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), $SLURM_JOB_NUM_NODES nodes: $SLURM_JOB_NODELIST"
    echo "$(ranks_per_node) ranks a node, $SLURM_CPUS_ON_NODE CPUs a node, launcher ${DLTUTORIAL_LAUNCHER:-torchrun}"
    env | grep -E '^(DLTUTORIAL|NCCL|FI|GLOO|OMP|CUDA_VISIBLE|ROCR_VISIBLE|TORCH)_?[A-Z_]*=' | sort || true
}

# A job that is started anew has runs of its own: what an earlier start has written stays.
of_this_start() {
    local restarts=${SLURM_RESTART_COUNT:-0}
    if [ "$restarts" -gt 0 ]; then echo "$1-start-$((restarts + 1))"; else echo "$1"; fi
}

# Numbers of jobs are a cluster's own, and begin anew with it; the folder of runs may have seen other clusters.
refuse_taken() {
    local path
    for path in "$@"; do
        [ ! -e "$path" ] || refuse "$path is there already, of another job with this number, and stays;" \
            "move it away, or sbatch the job again: it gets another number"
    done
}

start_ranks() {
    local nodes=$1 module=$2 per_node first
    shift 2
    per_node=$(ranks_per_node)
    # Where the ranks meet: rank 0 listens on the first node, under the name of its fast network where the site has one,
    # else under the address by which Slurm itself reaches it …
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    MASTER_ADDR=$first${DLTUTORIAL_MASTER_SUFFIX:-}
    if [ -z "${DLTUTORIAL_MASTER_SUFFIX:-}" ]; then
        MASTER_ADDR=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
    fi
    [ -n "$first" ] && [ -n "$MASTER_ADDR" ] ||
        refuse "scontrol does not say the address of ${first:-the first node}; set DLTUTORIAL_MASTER_SUFFIX, or ask the site"
    # … on a port that another job on that node is unlikely to have.
    MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
    export MASTER_ADDR MASTER_PORT
    # Each rank takes its share of the node's cores, whatever was set where the job was submitted.
    export OMP_NUM_THREADS=$((SLURM_CPUS_ON_NODE > per_node ? SLURM_CPUS_ON_NODE / per_node : 1))
    export TQDM_MININTERVAL="${TQDM_MININTERVAL:-30}" # a progress bar in a file: now and then is enough
    read -r -a python <<<"${DLTUTORIAL_CONTAINER:-} ${DLTUTORIAL_PYTHON:-.venv/bin/python}"
    # Slurm's signals reach every process of a step. torchrun would die of SIGUSR1, so it is told to ignore it; a rank
    # that has begun to train listens to it all the same. PET_NODE_RANK is torchrun's --node-rank, of each node its own.
    # shellcheck disable=SC2016 # expanded on each node
    local shield='trap "" USR1; export PET_NODE_RANK=$SLURM_NODEID; exec "$@"'
    # --cpus-per-task: since Slurm 22.05 srun does not take it from sbatch, and would bind all ranks to one core.
    # --kill-on-bad-exit: when one rank has failed the others would wait for it in vain.
    if [ "${DLTUTORIAL_LAUNCHER:-torchrun}" = torchrun ]; then
        exec srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" \
            --kill-on-bad-exit=1 bash -c "$shield" node \
            "${python[@]}" -m torch.distributed.run --nnodes="$nodes" --nproc-per-node="$per_node" \
            --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" -m "$module" "$@"
    else
        exec srun --nodes="$nodes" --ntasks=$((nodes * per_node)) --ntasks-per-node="$per_node" \
            --cpus-per-task="$OMP_NUM_THREADS" --kill-on-bad-exit=1 \
            bash -c "$shield" rank "${python[@]}" -m "$module" "$@"
    fi
}
