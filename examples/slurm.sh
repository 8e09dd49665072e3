#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --signal=TERM@120
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29400 WORLD_SIZE=$SLURM_NNODES
# shellcheck disable=SC2016  # each host expands its own SLURM_NODEID
srun --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_NODEID ML_ROOT=runs/first-try/$SLURM_NODEID
  exec .venv/bin/python -m entry_point train data=folder data.root=/photos'
