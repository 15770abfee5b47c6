#!/bin/bash
# A federation on SLURM: one Ray node per machine, the run itself on the first of them.
#
#     sbatch --nodes=4 --cpus-per-task=32 examples/cluster/slurm.sh method=scaffold data=fashion_mnist model=lenet5
#
# Everything after the script's name is given to `arno run`. $VENV (default .venv) and the folder from which the job is
# submitted must be visible on every machine.
#SBATCH --job-name=arno
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:INT@120
set -euo pipefail

source "${VENV:-.venv}/bin/activate"
export RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1
cores=${SLURM_CPUS_PER_TASK:-1}
out=${OUT:-runs/slurm-$SLURM_JOB_ID}
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname -I | awk '{print $1}'):6379

srun --nodes=1 --ntasks=1 -w "$head" \
  ray start --head --node-ip-address="${address%:*}" --port=6379 --num-cpus="$cores" --include-dashboard=false --block &
until ray health-check --address "$address" 2>/dev/null; do sleep 1; done
if ((${#machines[@]} > 1)); then
  srun --nodes=$((${#machines[@]} - 1)) --ntasks=$((${#machines[@]} - 1)) --exclude="$head" \
    ray start --address="$address" --num-cpus="$cores" --block &
fi

# A job that ran before in the same folder (requeued, or stopped by its time limit) goes on from its last checkpoint.
if [ -e "$out/manifest.json" ]; then
  arno resume "$out" engine.address="$address" &
else
  arno run engine=ray engine.address="$address" engine.workers=$((cores * ${#machines[@]})) out="$out" "$@" &
fi
run=$!
trap 'kill -INT $run' INT  # SLURM's warning before the time limit: the round ends and the run is saved
status=0
wait $run || status=$?
if kill -0 $run 2>/dev/null; then  # the wait was cut short by the warning
  status=0
  wait $run || status=$?
fi
jobs -p | xargs -r kill 2>/dev/null || true
exit $status
