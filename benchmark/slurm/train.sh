# Shared by the templates in this folder: starts a training, or resumes the one that the same job started.
#   SCRIPT      training script (default: pqn_rnn.py)
#   RUN_DIR     folder of the runs (default: runs/slurm-JOB)

SCRIPT="${SCRIPT:-pqn_rnn.py}"
RUN_DIR="${RUN_DIR:-runs/slurm-${SLURM_JOB_ID:?these templates are for sbatch}}"

train() {
    cd "${SLURM_SUBMIT_DIR:?}" || return 1
    local begun together=()
    begun=$(ls -d "$RUN_DIR"/*/checkpoints 2>/dev/null | head -1)
    if [ -n "$begun" ]; then # requeued: the arguments are in the run folder
        [ "$1" = --distributed ] && together=(--distributed)
        set -- "${together[@]}" --resume "${begun%/checkpoints}"
    else
        set -- "$@" --run-dir "$RUN_DIR"
    fi
    # five minutes before the time limit, SLURM sends SIGTERM; the training saves a checkpoint and exits with 143
    srun .venv/bin/python "$SCRIPT" "$@"
    local code=$?
    if [ $code -eq 143 ] && [ -n "$SLURM_JOB_ID" ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    return $code
}
