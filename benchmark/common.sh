# Shared by the lists of commands in this folder. Settings, taken from the environment:
#   BUDGET     smoke (minutes: does it all run?), cpu (hours on two cores), gpu (hours on one GPU),
#              paper (published hyper-parameters)
#   SEEDS      consecutive seeds, trained together: "0 1 2"
#   ENVS       ids: "CartPoleEasy NavigatorEasy"
#   STEPS      steps of each run with BUDGET=cpu, in {pqn,ppo,dqn}_{mlp,rnn}.sh, analysis.sh and
#              ten_games.sh and memory_study.sh, evaluated ten times on the way; AutoEncode trains twice as long with
#              pqn_*
#   TWINS      mdp (fully observable), pomdp (partially observable) or both: "pomdp mdp"
#   DRY_RUN=1  print the commands without running them
#   RUN_DIR    folder of the runs (default: runs/LIST_BUDGET)
#   SETTINGS   with BUDGET=paper: stated (as the paper states them) or code (as its code runs them)
#   OUT        folder of tables and pictures (default: RUN_DIR/report); the pages use OUT=docs/figures
#   PYTHON     interpreter (default: .venv/bin/python)
# Each command has its own folder in RUN_DIR. A complete command is skipped. An interrupted one resumes from its last
# checkpoint. Failures are reported at the end, with exit code 1. Ctrl-C or SIGTERM stops the run, which saves
# a checkpoint, and then the list.
# Before it sources this file, a list can set WITHOUT (which of BUDGET, SEEDS, ENVS and TWINS it ignores) and OWN_IDS
# (not empty: its ids are not those of the games). A list that does not use $cpu_steps ignores STEPS.
# shellcheck shell=bash
set -euo pipefail
grep -qs cpu_steps "$0" || WITHOUT="${WITHOUT:-} STEPS"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for name in ${WITHOUT:-}; do
    value="${!name:-}"
    [ -z "$value" ] || [ "$name=$value" = BUDGET=cpu ] || [ "$name=$value" = BUDGET=smoke ] ||
        echo "$(basename "$0"): ignoring $name=$value, this list sets its own" >&2
done
BUDGET="${BUDGET:-cpu}"
SEEDS="${SEEDS:-0 1 2}"
STEPS="${STEPS:-1000000}"
TWINS="${TWINS:-pomdp mdp}"
DRY_RUN="${DRY_RUN:-}"
SETTINGS="${SETTINGS:-stated}"
suffix="" && [ "$BUDGET" != paper ] || suffix="_$SETTINGS"
RUN_DIR="${RUN_DIR:-runs/$(basename "$0" .sh)_$BUDGET$suffix}"
OUT="${OUT:-$RUN_DIR/report}"
PYTHON="${PYTHON:-.venv/bin/python}"
EASY="AutoEncodeEasy BattleShipEasy BreakoutEasy CartPoleEasy CountRecallEasy MineSweeperEasy NavigatorEasy \
NoisyCartPoleEasy SkittlesEasy TetrisEasy"
failed=() places=() analysed=()
part="" # subfolder of RUN_DIR for the next commands
child=""

refuse() { # message
    echo "$*" >&2
    exit 2
}
case "$BUDGET" in
    smoke) ENVS="${ENVS:-CartPoleEasy CountRecallEasy}" ;;
    cpu | gpu | paper) ENVS="${ENVS:-$EASY}" ;;
    *) refuse "BUDGET=$BUDGET: use smoke, cpu, gpu or paper" ;;
esac
families="${EASY//Easy /|}" && families="${families%Easy}"
for env in $ENVS; do
    [[ -n "${OWN_IDS:-}" || $env =~ ^($families)(Easy|Medium|Hard)$ ]] ||
        refuse "ENVS=$ENVS: $env is not an id of popgym_arcade"
done
for twin in $TWINS; do
    [[ $twin == pomdp || $twin == mdp ]] || refuse "TWINS=$TWINS: use pomdp, mdp or \"pomdp mdp\""
done
[[ $SETTINGS == stated || $SETTINGS == code ]] || refuse "SETTINGS=$SETTINGS: use stated or code"
# shellcheck disable=SC2086
set -- $SEEDS
first_seed="${1:-}" num_seeds=$#
[[ "$SEEDS" =~ ^[0-9]+(\ [0-9]+)*$ && "$SEEDS" == "$(seq -s ' ' "$first_seed" $((first_seed + num_seeds - 1)))" ]] ||
    refuse "SEEDS=$SEEDS: use consecutive numbers, such as \"0 1 2\""
[[ $STEPS =~ ^[1-9][0-9]+$ ]] || refuse "STEPS=$STEPS: use a whole number, 10 or more"
tiny="--total-timesteps 1 --num-envs 4 --num-steps 8 --num-minibatches 2 --eval-every 0 --eval-episodes 1 --hidden-size 16" # of pqn_* and ppo_*
gpu="--total-timesteps 10000000 --num-envs 512 --num-minibatches 16 --precision bfloat16 --eval-every 500000 --eval-episodes 128" # of pqn_* and ppo_*
cpu_steps="--total-timesteps $STEPS --eval-every $((STEPS / 10)) --eval-episodes 64"
seeds="--seed $first_seed --num-seeds $num_seeds" # flags of all scripts
# earlier defaults, for the lists whose published results were measured with them
before_tuning="--num-envs 32 --num-steps 32 --learning-rate 5e-4 --q-lambda 0.65 --exploration-fraction 0.4 --num-minibatches 8 --gamma 0.99"
ppo_before_tuning="--learning-rate 2.5e-4 --gamma 0.99 --gae-lambda 0.95"

# Exceptions to PQN's defaults: Navigator is not learned with them (docs/pqn_mlp.md#why-navigator-is-hard), and the two
# CartPole games, which pay for every step until the pole falls, are learned sooner with a longer horizon (same page).
# AutoEncode is still learning after a million steps.
pqn_flags_of() { # id -> flags, for BUDGET=cpu
    case "$1" in
        AutoEncode*) echo "--total-timesteps $((2 * STEPS))" ;;
        Navigator*) echo "--exploration-fraction 1 --update-epochs 4 --learning-rate 5e-4" ;;
        CartPole* | NoisyCartPole*) echo "--gamma 0.99" ;;
    esac
}

flag_of() { # twin -> its flag
    if [ "$1" = pomdp ]; then echo --partial-obs; else echo --no-partial-obs; fi
}

# Wang et al. 2025, arXiv:2503.01450. Unlike the paper, its code anneals PQN's learning rate to 5e-7 over the first
# tenth of the run, and epsilon over the first two fifths. PPO's learning rate is annealed to 0 over the whole
# run. Frames have 128 px.
published() { # pqn or ppo -> flags
    local flags="--encoder paper --num-envs 16 --num-steps 128 --num-minibatches 16 --update-epochs 4 --gamma 0.99"
    flags="$flags --max-grad-norm 0.5 --eval-every 1000000 --eval-episodes 128"
    case "$1 $SETTINGS" in
        "pqn stated") echo "$flags --q-lambda 0.95 --learning-rate 5e-5 --end-e 0.05 --exploration-fraction 0.25" ;;
        "pqn code")
            flags="$flags --q-lambda 0.95 --learning-rate 5e-5 --learning-rate-end 5e-7 --anneal-fraction 0.1"
            echo "$flags --end-e 0.05 --exploration-fraction 0.4"
            ;;
        "ppo stated") echo "$flags --gae-lambda 0.95 --learning-rate 5e-5" ;;
        "ppo code") echo "$flags --gae-lambda 0.95 --learning-rate 1e-4" ;;
    esac
}

published_steps() { # id -> steps of the run
    case "$SETTINGS $1" in
        "stated BattleShip"* | "stated CountRecall"*) echo 20000000 ;;
        stated* | "code CartPole"* | "code NoisyCartPole"* | "code AutoEncode"*) echo 10000000 ;;
        *) echo 20000000 ;;
    esac
}

# BUDGET=smoke trains for SMOKE_STEPS (default 1: a single update) with SMOKE_FLAGS, the other budgets for STEPS.
smoke_or() { # STEPS [SMOKE_STEPS [SMOKE_FLAGS]] -> flags
    if [ "$BUDGET" = smoke ]; then
        echo "--total-timesteps ${2:-1} --eval-every 0 --eval-episodes 1 ${*:3}"
    else
        echo "--total-timesteps $1"
    fi
}

place_of() { # script, flags -> folder of this run
    echo "$RUN_DIR/${part:+$part/}$(printf %s "$*" | cksum | cut -d ' ' -f 1)"
}

train() { # script, flags: trains or resumes; skips a complete run
    local place flags=() saved lock trained_by
    place="$(place_of "$@")"
    places+=("$place")
    if [ -n "$DRY_RUN" ]; then
        print_command "$@" --run-dir "$place"
        return
    fi
    if [ -e "$place/complete" ]; then
        echo "complete: $*"
        [ ! -s "$place/complete" ] || [ "$(cat "$place/complete")" = "$(code_of "$1")" ] ||
            echo "trained with different code; remove $place to train it again" >&2
        return
    fi
    mkdir -p "$place"
    exec {lock}> "$place/lock" # the run inherits the lock and holds it until it ends
    if ! flock -n "$lock"; then
        failed+=("another list is training it: $*")
        exec {lock}>&-
        return
    fi
    echo "$*" > "$place/command"
    for saved in "$place"/*/; do
        if compgen -G "$saved/checkpoints/*/sha256.json" > /dev/null; then
            flags=(--resume "$saved")
        elif [ -d "$saved" ]; then # no checkpoint to resume from: keep it out of the report
            mkdir -p "$RUN_DIR.unfinished"
            mv "$saved" "$(mktemp -d "$RUN_DIR.unfinished/XXXXXX")/"
        fi
    done
    [ ${#flags[@]} -gt 0 ] || flags=("${@:2}" --run-dir "$place")
    echo "$1 ${flags[*]}"
    trained_by="$(code_of "$1")"
    if call "$1" "${flags[@]}"; then echo "$trained_by" > "$place/complete"; else failed+=("exit $?: $*"); fi
    exec {lock}>&-
}

variant() { # script, name, sed expressions: edits a copy of the script and trains it as NAME, with $flags
    local script="$1" name="$2" place="$RUN_DIR/scripts_$2" expression
    shift 2
    for expression in "$@"; do
        ! cmp -s "$script" <(sed "$expression" "$script") ||
            refuse "$script: this expression changes nothing: $expression"
    done
    if [ -z "$DRY_RUN" ]; then
        mkdir -p "$place"
        sed "${@/#/-e}" "$script" > "$place/$script"
    fi
    train "$place/$script" --exp-name "$name" $flags
}

code_of() { # files -> checksum of these and of the package code that runs use
    { cat "$@" popgym_arcade/{,environments/,worlds/,baselines/,baselines/*/}*.py || true; } 2> /dev/null | cksum
}

# Runs Python in the background, because bash handles a signal at once only while it waits for a background process.
call() { # script, flags -> exit code
    setsid "$PYTHON" "$@" & # a separate session: Ctrl-C in a terminal reaches it once, through `stop`
    child=$!
    wait "$child" || local code=$?
    child=""
    return "${code:-0}"
}

stop() { # signal number: stops the run, which saves a checkpoint, and then the list
    trap - EXIT
    if [ -n "$child" ]; then
        kill -TERM "$child" 2> /dev/null
        wait "$child" || true
    fi
    report_time
    echo "stopped; run the same command to resume" >&2
    exit $((128 + $1))
}
trap 'stop 1' HUP
trap 'stop 2' INT
trap 'stop 15' TERM

print_command() { # script, flags: prints a command that can be pasted into a shell
    printf '%q ' "$PYTHON" "$@"
    echo
}

run() { # script, flags: any other Python command
    if [ -n "$DRY_RUN" ]; then print_command "$@"; else call "$@" || failed+=("exit $?: $*"); fi
}

runs_of() { # pattern of names -> patterns that match the run folders of the commands so far, in this part
    local place
    for place in "${places[@]}"; do
        [[ $place == "$RUN_DIR/${part:+$part/}"* ]] || continue
        if [ -n "$DRY_RUN" ] || compgen -G "$place/$1" > /dev/null; then echo "$place/$1"; fi
    done
}

move_aside() { # folder: renames it after the time it was made, to make room for a new one
    [ ! -e "$1" ] || mv -T "$1" "$(mktemp -d "$1.$(date -r "$1" +%Y%m%d-%H%M%S)_XXX")"
}

# Skipped if the folder has the results of the same command and no run is newer.
analyse() { # analysis script, name of its folder, flags
    local folder="$OUT/$2" command="$1 ${*:3}" made_by
    if [ -n "$DRY_RUN" ]; then
        print_command "$1" --out "$folder" "${@:3}"
        analysed+=("$folder")
        return
    fi
    if [ -e "$folder" ] && [ "$(cat "$folder/command" 2> /dev/null)" = "$command" ] &&
        [ -z "$(find "$RUN_DIR" -name complete -newer "$folder")" ]; then
        echo "up to date: $folder"
        [ ! -s "$folder/code" ] || [ "$(cat "$folder/code")" = "$(code_of "$1" popgym_arcade/analysis/*.py)" ] ||
            echo "made with different code; remove $folder to make it again" >&2
        analysed+=("$folder")
        return
    fi
    made_by="$(code_of "$1" popgym_arcade/analysis/*.py)"
    rm -rf "$folder.partial" # of an analysis that failed
    if call "$1" --out "$folder.partial" "${@:3}"; then
        move_aside "$folder"
        mv "$folder.partial" "$folder"
        echo "$command" > "$folder/command"
        echo "$made_by" > "$folder/code"
        touch "$folder"
        analysed+=("$folder")
    else
        failed+=("exit $?: $*")
    fi
}

pages() { # writes the tables and pictures that the pages show of the analyses so far to OUT/pages
    local command=(benchmark/analysis_tables.py --folders "${analysed[@]}" --out "$OUT/pages")
    if [ -n "$DRY_RUN" ]; then
        print_command "${command[@]}"
    elif [ ${#analysed[@]} -gt 0 ]; then
        move_aside "$OUT/pages"
        run "${command[@]}"
    fi
}

report() { # name of the files, title, more flags of benchmark/report.py: reports on the commands so far, in this part
    local runs
    mapfile -t runs < <(runs_of "*__*")
    if [ ${#runs[@]} -eq 0 ]; then
        failed+=("nothing to report: $1")
        return
    fi
    run benchmark/report.py --runs "${runs[@]}" --out "$OUT/$1" --title "$2" "${@:3}"
}

report_time() { # of this call, and of all calls with this RUN_DIR
    local earlier lock name="$RUN_DIR/seconds"
    if [ -n "$DRY_RUN" ] || [ ! -d "$RUN_DIR" ]; then return; fi
    exec {lock}>> "$name"
    flock "$lock" # of another list that uses this RUN_DIR
    earlier="$(cat "$name")"
    echo $((earlier + SECONDS)) > "$name"
    exec {lock}>&-
    echo "took $(duration "$SECONDS"), with earlier calls $(duration $((earlier + SECONDS)))"
}

duration() { # seconds -> hours:minutes:seconds
    printf '%d:%02d:%02d' $(($1 / 3600)) $(($1 / 60 % 60)) $(($1 % 60))
}

report_failures() { # exit code so far
    report_time
    [ ${#failed[@]} -eq 0 ] || printf 'failed: %s\n' "${failed[@]}" >&2
    if [ "$1" -eq 0 ] && [ ${#failed[@]} -gt 0 ]; then exit 1; fi
}
trap 'report_failures $?' EXIT
