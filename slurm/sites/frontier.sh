# Frontier at OLCF: nodes with 4 AMD MI250X, which are 8 GPUs to PyTorch, Slingshot 11, RCCL. Not tried yet.
# First: export SBATCH_ACCOUNT=<your project>
# All of it: https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html

: "${SBATCH_ACCOUNT:?export SBATCH_ACCOUNT=<your project> first; https://my.olcf.ornl.gov lists yours}"

# batch is the partition for all but special jobs; each half of an MI250X is a GPU of its own.
# https://docs.olcf.ornl.gov/systems/frontier_user_guide.html
export SBATCH_PARTITION="${SBATCH_PARTITION:-batch}"
export SBATCH_GPUS_PER_NODE=8
# The network's other rendezvous protocol, better for RCCL at scale. FI_CXI_RDZV_PROTO is its other half.
export SBATCH_NETWORK=disable_rdzv_get FI_CXI_RDZV_PROTO=alt_read

# The cores of rank 0, 1, … are next to these GPUs, in this order (the guide's diagram of a node).
export ROCR_VISIBLE_DEVICES=4,5,2,3,6,7,0,1

# PyTorch for ROCm lives in .venv: https://pytorch.org/get-started/locally/, made with these modules loaded.
# rccl-net-plugin comes after rocm: without it RCCL talks TCP over Slingshot. It sets NCCL_NET_PLUGIN and FI_CXI_*.
if [ -n "${DLTUTORIAL_IMAGE:-}" ]; then
    # https://docs.olcf.ornl.gov/software/containers_on_frontier.html
    export DLTUTORIAL_CONTAINER="apptainer exec --rocm $DLTUTORIAL_IMAGE" DLTUTORIAL_PYTHON=python
fi
module load PrgEnv-gnu rocm rccl-net-plugin craype-accel-amd-gfx90a

# RCCL reads NCCL's variables. If the first collective hangs, leave only hsn0.
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3 GLOO_SOCKET_IFNAME=hsn0
export NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1

# MIOpen's cache is a small database: in the node's memory, not on a shared file system that cannot lock it.
export MIOPEN_USER_DB_PATH="/dev/shm/$USER-miopen" MIOPEN_CUSTOM_CACHE_DIR="/dev/shm/$USER-miopen"

# Orion is the file system for jobs; MEMBERWORK is yours in each project.
# https://docs.olcf.ornl.gov/data/index.html
: "${MEMBERWORK:?set MEMBERWORK to your work folder on Orion; a login shell of Frontier sets it}"
export DLTUTORIAL_RUNS="${DLTUTORIAL_RUNS:-$MEMBERWORK/$SBATCH_ACCOUNT/dltutorial/runs}"
export DLTUTORIAL_DATA="${DLTUTORIAL_DATA:-$MEMBERWORK/$SBATCH_ACCOUNT/dltutorial/data}"

# Outside a job this is a login node, which all users share: heavy calls of the course refuse there (dltutorial/node.py).
export DLTUTORIAL_NODE="${DLTUTORIAL_NODE:-login}"
