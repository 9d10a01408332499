# What the templates of this folder share: trains, or goes on with what the same job began.
#   SCRIPT      training script (pqn_rnn.py)
#   RUN_DIR     folder of the run folders (runs/slurm-JOB)

SCRIPT="${SCRIPT:-pqn_rnn.py}"
RUN_DIR="${RUN_DIR:-runs/slurm-${SLURM_JOB_ID:?these templates are for sbatch}}"

train() {
    cd "${SLURM_SUBMIT_DIR:?}" || return 1
    local begun together=()
    begun=$(ls -d "$RUN_DIR"/*/checkpoints 2>/dev/null | head -1)
    if [ -n "$begun" ]; then # requeued: its arguments are in the run folder
        [ "$1" = --distributed ] && together=(--distributed)
        set -- "${together[@]}" --resume "${begun%/checkpoints}"
    else
        set -- "$@" --run-dir "$RUN_DIR"
    fi
    # SIGTERM, five minutes before the end, goes to the training, which saves a checkpoint and ends with 143
    srun .venv/bin/python "$SCRIPT" "$@"
    local code=$?
    if [ $code -eq 143 ] && [ -n "$SLURM_JOB_ID" ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    return $code
}
