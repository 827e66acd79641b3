# The pocket cluster: Slurm on this machine. First: eval "$(dltutorial pocket up --nodes 2)"
# Then: source slurm/sites/pocket.sh; sbatch -N 2 slurm/train.sbatch --preset smoke

# Slurm's commands find their cluster by this file.
: "${SLURM_CONF:?start the pocket cluster first: eval \"\$(dltutorial pocket up)\"}"

# Two ranks on each pretended node: enough for every pattern of communication.
export DLTUTORIAL_RANKS_PER_NODE="${DLTUTORIAL_RANKS_PER_NODE:-2}"

# A job may get one core of each pretended node. Without this setting srun would refuse to start two ranks on it.
export SLURM_OVERCOMMIT=1

# All its nodes are this machine, so their ranks would fight for its GPUs, which NCCL refuses. They compute on the CPU.
export CUDA_VISIBLE_DEVICES=""

# This machine's name may resolve to an address that cannot be reached; the loopback always can.
# https://docs.pytorch.org/docs/stable/distributed.html, "Common environment variables"
export GLOO_SOCKET_IFNAME=lo

# The nodes share the cores: a thread that waits gives its core away. (OpenMP 5, section 6.7)
export OMP_WAIT_POLICY=PASSIVE
