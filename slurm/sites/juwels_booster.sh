# JUWELS Booster at JSC: nodes with 4 NVIDIA A100, HDR InfiniBand. Not tried yet.
# First: jutil env activate -p <your project>, which sets SCRATCH; export SBATCH_ACCOUNT=<your budget>
# https://apps.fz-juelich.de/jsc/hps/juwels/environment.html

: "${SBATCH_ACCOUNT:?export SBATCH_ACCOUNT=<your budget> first; jutil user projects lists yours}"

# booster is the large partition, develbooster the quick one for tests.
# https://apps.fz-juelich.de/jsc/hps/juwels/quickintro.html
export SBATCH_PARTITION="${SBATCH_PARTITION:-booster}"
export SBATCH_GRES=gpu:4
# By default a task sees only the GPU next to its cores. A rank takes the GPU with its local rank, so it must see all four.
# https://apps.fz-juelich.de/jsc/hps/juwels/affinity.html
export CUDA_VISIBLE_DEVICES=0,1,2,3

# Compilers, CUDA and Python of one stage, for a .venv that was made with the same modules loaded; or a container.
# https://apps.fz-juelich.de/jsc/hps/juwels/software-modules.html · …/container-runtime.html
if [ -n "${DLTUTORIAL_IMAGE:-}" ]; then
    export DLTUTORIAL_CONTAINER="apptainer exec --nv $DLTUTORIAL_IMAGE" DLTUTORIAL_PYTHON=python
else
    module load Stages/2025 GCC CUDA Python
fi

# Ranks meet over InfiniBand: a node's name with an i at its end is its address there, and ib0 the interface.
# Without them they meet over Ethernet, which is slow and, between cells, may be closed.
export DLTUTORIAL_MASTER_SUFFIX=i
export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
# Wait longer for an answer before a connection counts as broken: the network is large, and busy at times.
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, NCCL_IB_TIMEOUT
export NCCL_IB_TIMEOUT=22

# Runs and data go to the project's scratch: homes are small.
# https://apps.fz-juelich.de/jsc/hps/juwels/environment.html, "Available file systems"
: "${SCRATCH:?first: jutil env activate -p <your project>, which sets SCRATCH}"
export DLTUTORIAL_RUNS="${DLTUTORIAL_RUNS:-$SCRATCH/$USER/dltutorial/runs}"
export DLTUTORIAL_DATA="${DLTUTORIAL_DATA:-$SCRATCH/$USER/dltutorial/data}"

# Outside a job this is a login node, which all users share: heavy calls of the course refuse there (dltutorial/node.py).
export DLTUTORIAL_NODE="${DLTUTORIAL_NODE:-login}"
