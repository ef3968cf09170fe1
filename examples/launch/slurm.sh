#!/bin/bash
# A run on the nodes of a Slurm allocation, one system a node; a job that is queued again goes on.
#   sbatch examples/launch/slurm.sh small.yaml runs/small
#SBATCH --job-name=openwafer
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@300
set -euo pipefail
config=$1
run=$2

# The first node has the parameter store and the run's folder.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
command=(train "$config")
if [[ -f $run/config.yaml ]]; then
  command=(resume "$run" --set "systems=$SLURM_NNODES")
fi
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK FIRST=$first

# shellcheck disable=SC2016 # each node has a number of its own
srun --kill-on-bad-exit=0 bash -c '
  exec torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 1 --node-rank "$SLURM_NODEID" \
    --master-addr "$FIRST" --master-port 29500 --max-restarts 3 --no-python openwafer "$@"
' openwafer "${command[@]}"
