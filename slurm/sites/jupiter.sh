# JUPITER Booster at JSC: nodes with 4 NVIDIA GH200, NDR InfiniBand. Not tried yet.
# First: jutil env activate -p <your project>, which sets SCRATCH; export SBATCH_ACCOUNT=<your budget>
# https://apps.fz-juelich.de/jsc/hps/jupiter/environment.html

: "${SBATCH_ACCOUNT:?export SBATCH_ACCOUNT=<your budget> first; jutil user projects lists yours}"

# booster is the partition of the GH200 nodes.
# https://apps.fz-juelich.de/jsc/hps/jupiter/batchsystem.html
export SBATCH_PARTITION="${SBATCH_PARTITION:-booster}"
export SBATCH_GRES=gpu:4
# As on JUWELS, a rank takes the GPU with its local rank, so it must see all four.
export CUDA_VISIBLE_DEVICES=0,1,2,3

# The CPUs are Arm. A .venv or an image from an x86 machine does not run here, so make them on JUPITER.
# https://apps.fz-juelich.de/jsc/hps/jupiter/configuration.html
if [ -n "${DLTUTORIAL_IMAGE:-}" ]; then
    export DLTUTORIAL_CONTAINER="apptainer exec --nv $DLTUTORIAL_IMAGE" DLTUTORIAL_PYTHON=python
else
    module load Stages/2025 GCC CUDA Python
fi

# ib0 is InfiniBand. Recipes for JSC add an i to a node's name on JUWELS, JURECA-DC and JUSUF only, so none is added here.
# https://github.com/interTwin-eu/itwinai, src/itwinai/slurm/system-base-scripts/juwels_pre_exec.sh
export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
# Wait longer for an answer before a connection counts as broken.
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, NCCL_IB_TIMEOUT
export NCCL_IB_TIMEOUT=22

# Runs and data go to the project's scratch: homes are small.
# https://apps.fz-juelich.de/jsc/hps/jupiter/environment.html, "Available file systems"
: "${SCRATCH:?first: jutil env activate -p <your project>, which sets SCRATCH}"
export DLTUTORIAL_RUNS="${DLTUTORIAL_RUNS:-$SCRATCH/$USER/dltutorial/runs}"
export DLTUTORIAL_DATA="${DLTUTORIAL_DATA:-$SCRATCH/$USER/dltutorial/data}"

# Outside a job this is a login node, which all users share: heavy calls of the course refuse there (dltutorial/node.py).
export DLTUTORIAL_NODE="${DLTUTORIAL_NODE:-login}"
