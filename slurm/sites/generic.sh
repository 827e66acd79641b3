# A cluster that nobody has described yet: copy this file, fill it in, source it.
# Slurm's documentation of every SBATCH_ variable: https://slurm.schedmd.com/sbatch.html, "input environment variables".
# Find out with:  sinfo --summarize   sacctmgr show associations user=$USER   module avail   ip -brief address

# Who pays, and where to run. Sites that have one of each need neither.
#   export SBATCH_ACCOUNT=…  SBATCH_PARTITION=…
echo "account ${SBATCH_ACCOUNT:-(the default)}, partition ${SBATCH_PARTITION:-(the default)}"

# GPUs of a node; some sites want SBATCH_GRES=gpu:4 instead. Without any the ranks compute on the CPU.
#   export SBATCH_GPUS_PER_NODE=4

# Whole nodes: ranks that share one with other jobs wait for them in every collective.
export SBATCH_EXCLUSIVE="${SBATCH_EXCLUSIVE:-exclusive}"

# The software: a module, a virtual environment (the default, .venv), or a container.
#   export DLTUTORIAL_CONTAINER="apptainer exec --nv course.sif"  DLTUTORIAL_PYTHON=python
# --nv brings the host's driver in: https://apptainer.org/docs/user/main/gpu.html

# The network that NCCL and gloo talk over, when they choose a wrong one: hangs at the first collective, or 1 Gbit/s.
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
#   export NCCL_SOCKET_IFNAME=ib0  GLOO_SOCKET_IFNAME=ib0
# Tell once at the start which NCCL this is; INFO tells which network it has found.
export NCCL_DEBUG="${NCCL_DEBUG:-VERSION}"

# Runs and data belong on the file system for scratch, which all nodes see: homes are small and slow.
if [ -n "${SCRATCH:-}" ]; then
    export DLTUTORIAL_RUNS="${DLTUTORIAL_RUNS:-$SCRATCH/dltutorial/runs}"
    export DLTUTORIAL_DATA="${DLTUTORIAL_DATA:-$SCRATCH/dltutorial/data}"
fi

# Outside a job this is a login node, which all users share: heavy calls of the course refuse there (dltutorial/node.py).
# On a machine of your own that has Slurm: export DLTUTORIAL_NODE=compute first.
export DLTUTORIAL_NODE="${DLTUTORIAL_NODE:-login}"
