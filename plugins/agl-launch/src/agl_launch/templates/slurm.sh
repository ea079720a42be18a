#!/bin/bash
# A job of Slurm, written by agl launch. Submit it where the run's file lies, with agl on the PATH:
# one folder that all machines see. The algorithm runs on the job's first machine, runners on all.
# %{grace} seconds before the time limit the run stops where it can go on, and the job queues again.
# A job that comes back, after that or after a machine has failed, goes on with its run.
#SBATCH --job-name=%{name}
#SBATCH --nodes=%{machines}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=%{cpus}
#SBATCH --mem=%{memory}G
%{gpu_line}#SBATCH --time=%{minutes}
#SBATCH --signal=B:USR1@%{grace}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%%x-%%j.log

# If your shell has none: of this start only, and in no file.
export AGL_SERVER_TOKEN=${AGL_SERVER_TOKEN:-$(python3 -c "import secrets; print(secrets.token_urlsafe())")}
export AGL_SERVER_PORT=$((10000 + SLURM_JOB_ID %% 20000)) AGL_MANAGED_STORE=%{managed}

AGL_CURRENT_ROLE=algorithm AGL_SERVER_HOST=0.0.0.0 \
  %{run} %{run_dir} --resume &
algorithm=$!
AGL_CURRENT_ROLE=runner AGL_SERVER_HOST=$(hostname) \
  srun --overlap --ntasks-per-node=1 --cpus-per-task=%{cpus} %{run} &
runners=$!

# The time limit is near: stop where the run can go on; if that takes too long, stop at once.
stopped=
trap 'stopped=yes; kill -TERM $algorithm; hurry &' USR1
hurry() {
  sleep %{half}
  kill -TERM $algorithm
  sleep %{quarter}
  scontrol requeue $SLURM_JOB_ID
}
# Of scancel, or of a preemption, after which Slurm requeues by itself.
trap 'kill -TERM $algorithm' TERM
while kill -0 $algorithm && kill -0 $runners; do
  wait -n $algorithm $runners
done 2> /dev/null
# If no runner is left, the algorithm would wait for ever: it stops where it can, and later at once.
{ kill -TERM $algorithm && sleep %{half} && kill -TERM $algorithm; } 2> /dev/null &
while kill -0 $algorithm 2> /dev/null; do
  wait $algorithm
done
wait $algorithm
code=$?
echo "agl run ended with exit code $code"
if [ "$stopped" ] && [ $code -ne 0 ]; then
  scontrol requeue $SLURM_JOB_ID
fi
exit $code
