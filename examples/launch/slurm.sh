#!/bin/bash
# A run on the nodes of a Slurm allocation, one system a node; a job that is queued again goes on.
# Config, tokens and run lie in a folder that all nodes see.
#   sbatch examples/launch/slurm.sh small.yaml runs/small
#SBATCH --job-name=openwafer
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=openwafer-%j.log
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
# Two jobs may share a first node, where others listen at ports from 32768 on.
export PORT=$((10000 + SLURM_JOB_ID % 20000))
# Of the 300 s that the signal comes before the end, what torchrun lets a step and its saving take.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240

# shellcheck disable=SC2016 # each node has a number of its own
srun --kill-on-bad-exit=0 --output="openwafer-%j-%t.log" bash -c '
  exec torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 1 --node-rank "$SLURM_NODEID" \
    --master-addr "$FIRST" --master-port "$PORT" --max-restarts 3 --no-python openwafer "$@"
' openwafer "${command[@]}"
