# Perlmutter at NERSC: nodes with 4 NVIDIA A100, Slingshot 11. Not tried yet.
# First: export SBATCH_ACCOUNT=<your project>

# Jobs without an account go to your default one, which may have no GPU hours.
# https://docs.nersc.gov/jobs/policy/
: "${SBATCH_ACCOUNT:?export SBATCH_ACCOUNT=<your project> first; iris.nersc.gov lists yours}"

# GPU nodes are asked for by constraint, not by partition; regular is the ordinary queue, debug a quick short one.
# https://docs.nersc.gov/systems/perlmutter/running-jobs/
export SBATCH_CONSTRAINT="${SBATCH_CONSTRAINT:-gpu}"
export SBATCH_QOS="${SBATCH_QOS:-regular}"
export SBATCH_GPUS_PER_NODE=4

# A container, if you name its image; its module nccl-plugin brings the library that NCCL needs for Slingshot.
# https://docs.nersc.gov/development/containers/shifter/how-to-use/
# Otherwise NERSC's own build of PyTorch, which has that library too. Let .venv see it, once:
#     module load pytorch && python -m venv --system-site-packages .venv && make run CONSTRAINTS=
# https://docs.nersc.gov/machinelearning/pytorch/
if [ -n "${DLTUTORIAL_IMAGE:-}" ]; then
    export DLTUTORIAL_CONTAINER="shifter --image=$DLTUTORIAL_IMAGE --module=gpu,nccl-plugin" DLTUTORIAL_PYTHON=python
else
    module load pytorch
fi

# Meet and exchange addresses over Slingshot's interfaces, hsn0 … hsn3, not over the management network.
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
export NCCL_SOCKET_IFNAME=hsn GLOO_SOCKET_IFNAME=hsn0
# Fail when the plugin for Slingshot is not found; NCCL's own answer is to fall back to TCP, many times slower.
# https://docs.cscs.ch/software/communication/nccl/ (the same network, at CSCS)
export NCCL_NET="AWS Libfabric"
# GPU memory goes to the network card directly where both hang on one host bridge; rings may cross cards.
export NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1
# Libfabric: do not register host memory with the card (it can deadlock with CUDA), and watch for freed memory in a way
# that is safe beside NCCL's own threads. The other settings of the CXI provider come with NERSC's plugin.
# https://docs.isambard.ac.uk/user-documentation/guides/example-data/nccl/env_vars.sh (the same network, at Bristol)
export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd

# Scratch is an all-flash Lustre; files that are not read are purged.
# https://docs.nersc.gov/filesystems/perlmutter-scratch/
: "${SCRATCH:?set SCRATCH to your folder on the scratch file system; a login shell of Perlmutter sets it}"
export DLTUTORIAL_RUNS="${DLTUTORIAL_RUNS:-$SCRATCH/dltutorial/runs}"
export DLTUTORIAL_DATA="${DLTUTORIAL_DATA:-$SCRATCH/dltutorial/data}"

# Outside a job this is a login node, which all users share: heavy calls of the course refuse there (dltutorial/node.py).
export DLTUTORIAL_NODE="${DLTUTORIAL_NODE:-login}"
