# What the lists of commands in this folder share. They are read by bash, top to bottom, and take from the environment:
#   BUDGET     smoke (minutes: does it all run?), cpu (hours on two cores), gpu (hours on one), paper (published settings)
#   SEEDS      seeds, neighbours, which are trained together, as "0 1 2"
#   ENVS       ids, as "CartPoleEasy NavigatorEasy"
#   TWINS      "pomdp mdp", or one of them
#   DRY_RUN=1  print the commands, run none
#   RUN_DIR    folder of the runs (runs/LIST_BUDGET)
#   SETTINGS   of BUDGET=paper: stated, as the paper has them, or code, as its code runs them
#   OUT        folder of tables and pictures (RUN_DIR/report; the pages have those of OUT=docs/figures)
#   PYTHON     (.venv/bin/python)
# RUN_DIR has a folder for each command. What is complete is not run again, what was interrupted goes on from its last
# checkpoint, and what fails is told at the end, with exit code 1. Ctrl-C (or SIGTERM) stops the training, which saves
# itself, and the list. A list says before it reads this file which of BUDGET, SEEDS, ENVS and TWINS it takes no notice of
# (WITHOUT), and whether its ids are not those of the games (OWN_IDS).
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for name in ${WITHOUT:-}; do
    value="${!name:-}"
    [ -z "$value" ] || [ "$name=$value" = BUDGET=cpu ] || [ "$name=$value" = BUDGET=smoke ] ||
        echo "$(basename "$0"): $name=$value has no effect, this list has its own" >&2
done
BUDGET="${BUDGET:-cpu}"
SEEDS="${SEEDS:-0 1 2}"
TWINS="${TWINS:-pomdp mdp}"
DRY_RUN="${DRY_RUN:-}"
SETTINGS="${SETTINGS:-stated}"
of_paper="" && [ "$BUDGET" != paper ] || of_paper="_$SETTINGS"
RUN_DIR="${RUN_DIR:-runs/$(basename "$0" .sh)_$BUDGET$of_paper}"
OUT="${OUT:-$RUN_DIR/report}"
PYTHON="${PYTHON:-.venv/bin/python}"
EASY="AutoEncodeEasy BattleShipEasy BreakoutEasy CartPoleEasy CountRecallEasy MineSweeperEasy NavigatorEasy \
NoisyCartPoleEasy SkittlesEasy TetrisEasy"
failed=() places=() analysed=()
part="" # folder of RUN_DIR for the next commands
child=""

refuse() { # words
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
    [[ -n "${OWN_IDS:-}" || $env =~ ^($families)(Easy|Medium|Hard)$ ]] || refuse "ENVS=$ENVS: $env is no id of popgym_arcade"
done
for twin in $TWINS; do
    [[ $twin == pomdp || $twin == mdp ]] || refuse "TWINS=$TWINS: use pomdp, mdp or both of them"
done
[[ $SETTINGS == stated || $SETTINGS == code ]] || refuse "SETTINGS=$SETTINGS: use stated or code"
# shellcheck disable=SC2086
set -- $SEEDS
first_seed="${1:-}" num_seeds=$#
[[ "$SEEDS" =~ ^[0-9]+(\ [0-9]+)*$ && "$SEEDS" == "$(seq -s ' ' "$first_seed" $((first_seed + num_seeds - 1)))" ]] ||
    refuse "SEEDS=$SEEDS: use neighbours in order, as \"0 1 2\""
seeds="--seed $first_seed --num-seeds $num_seeds" # flags of all scripts
# the first defaults, for lists whose tables were made with them
before_tuning="--learning-rate 5e-4 --q-lambda 0.65 --exploration-fraction 0.4 --num-minibatches 8 --gamma 0.99"
ppo_before_tuning="--learning-rate 2.5e-4 --gamma 0.99 --gae-lambda 0.95"

# Navigator is not learned with PQN's defaults (docs/pqn_mlp.md#why-navigator-is-hard).
exception() { # id -> flags
    case "$1" in Navigator*) echo "--exploration-fraction 1 --update-epochs 4 --learning-rate 5e-4" ;; esac
}

flag_of() { # twin -> its flag
    if [ "$1" = pomdp ]; then echo --partial-obs; else echo --no-partial-obs; fi
}

# Wang et al. 2025, arXiv:2503.01450. Its code brings PQN's learning rate to 5e-7 within a tenth of the training and epsilon
# down within two fifths, whatever the paper says; PPO's learning rate falls to nothing over all of it. Frames of 128 px.
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

published_steps() { # id -> steps of its training
    case "$SETTINGS $1" in
        "stated BattleShip"* | "stated CountRecall"*) echo 20000000 ;;
        stated* | "code CartPole"* | "code NoisyCartPole"* | "code AutoEncode"*) echo 10000000 ;;
        *) echo 20000000 ;;
    esac
}

smoke_or() { # steps of every other budget; steps of smoke (1: one update) and flags that only smoke has -> flags
    if [ "$BUDGET" = smoke ]; then
        echo "--total-timesteps ${2:-1} --eval-every 0 --eval-episodes 1 ${*:3}"
    else
        echo "--total-timesteps $1"
    fi
}

train() { # script and flags: trains, or goes on with it, unless it is complete
    local place flags=() saved lock trained_by
    place="$RUN_DIR/${part:+$part/}$(printf %s "$*" | cksum | cut -d ' ' -f 1)"
    places+=("$place")
    if [ -n "$DRY_RUN" ]; then
        told "$@" --run-dir "$place"
        return
    fi
    if [ -e "$place/complete" ]; then
        echo "complete: $*"
        [ ! -s "$place/complete" ] || [ "$(cat "$place/complete")" = "$(code_of "$1")" ] ||
            echo "that was with other code; remove $place to train it again" >&2
        return
    fi
    mkdir -p "$place"
    exec {lock}> "$place/lock" # the training has it open too, so it is held as long as that lives
    if ! flock -n "$lock"; then
        failed+=("another list is at it: $*")
        exec {lock}>&-
        return
    fi
    echo "$*" > "$place/command"
    for saved in "$place"/*/; do
        if compgen -G "$saved/checkpoints/*/sha256.json" > /dev/null; then
            flags=(--resume "$saved")
        elif [ -d "$saved" ]; then # died before it saved anything: out of the report's way
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

variant() { # script, name, sed's expressions: trains a copy of the script, changed by them, under that name, with $flags
    local script="$1" name="$2" place="$RUN_DIR/scripts_$2" expression
    shift 2
    for expression in "$@"; do
        ! cmp -s "$script" <(sed "$expression" "$script") || refuse "$script has no line that this changes: $expression"
    done
    if [ -z "$DRY_RUN" ]; then
        mkdir -p "$place"
        sed "${@/#/-e}" "$script" > "$place/$script"
    fi
    train "$place/$script" --exp-name "$name" $flags
}

code_of() { # script -> a checksum of it and of the package next to it, as far as trainings use that
    { cat "$1" "$(dirname "$1")"/popgym_arcade/{,environments/,baselines/,baselines/*/}*.py || true; } 2> /dev/null | cksum
}

call() { # script and flags: Python, which a signal to the list reaches too; its exit code
    setsid "$PYTHON" "$@" & # in a group of its own: a terminal's Ctrl-C comes through `stop` alone, once
    child=$!
    wait "$child" || local code=$?
    child=""
    return "${code:-0}"
}

stop() { # number of a signal: stops the training, which saves itself, and the list
    trap - EXIT
    if [ -n "$child" ]; then
        kill -TERM "$child" 2> /dev/null
        wait "$child" || true
    fi
    echo "stopped; the same command goes on" >&2
    exit $((128 + $1))
}
trap 'stop 1' HUP
trap 'stop 2' INT
trap 'stop 15' TERM

told() { # a command as it can be typed
    printf '%q ' "$PYTHON" "$@"
    echo
}

run() { # any other command of Python
    if [ -n "$DRY_RUN" ]; then told "$@"; else call "$@" || failed+=("exit $?: $*"); fi
}

runs_of() { # pattern of run folders' names -> patterns of the runs of the commands so far, where there are any
    local place
    for place in "${places[@]}"; do
        [[ $place == "$RUN_DIR/${part:+$part/}"* ]] || continue
        if [ -n "$DRY_RUN" ] || compgen -G "$place/$1" > /dev/null; then echo "$place/$1"; fi
    done
}

aside() { # folder: out of the way of a new one, under the time it was made
    [ ! -e "$1" ] || mv -T "$1" "$(mktemp -d "$1.$(date -r "$1" +%Y%m%d-%H%M%S)_XXX")"
}

analyse() { # script of an analysis, name of its folder, flags; made again with other flags, or when a training is newer
    local folder="$OUT/$2" command="$1 ${*:3}"
    if [ -n "$DRY_RUN" ]; then
        told "$1" --out "$folder" "${@:3}"
        analysed+=("$folder")
        return
    fi
    if [ -e "$folder" ] && [ "$(cat "$folder/command" 2> /dev/null)" = "$command" ] &&
        [ -z "$(find "$RUN_DIR" -name complete -newer "$folder")" ]; then
        echo "there already: $folder"
        analysed+=("$folder")
        return
    fi
    rm -rf "$folder.partial" # of an analysis that died
    if call "$1" --out "$folder.partial" "${@:3}"; then
        aside "$folder"
        mv "$folder.partial" "$folder"
        echo "$command" > "$folder/command"
        touch "$folder"
        analysed+=("$folder")
    else
        failed+=("exit $?: $*")
    fi
}

pages() { # what the pages show of the analyses so far, in OUT/pages
    local command=(benchmark/analysis_tables.py --folders "${analysed[@]}" --out "$OUT/pages")
    if [ -n "$DRY_RUN" ]; then
        told "${command[@]}"
    elif [ ${#analysed[@]} -gt 0 ]; then
        aside "$OUT/pages"
        run "${command[@]}"
    fi
}

report() { # name of the files, title and further flags of benchmark/report.py: of the commands so far, in this part
    local runs
    mapfile -t runs < <(runs_of "*__*")
    if [ ${#runs[@]} -eq 0 ]; then
        failed+=("nothing to report: $1")
        return
    fi
    run benchmark/report.py --runs "${runs[@]}" --out "$OUT/$1" --title "$2" "${@:3}"
}

tell_failed() { # exit code so far
    [ ${#failed[@]} -eq 0 ] || printf 'failed: %s\n' "${failed[@]}" >&2
    if [ "$1" -eq 0 ] && [ ${#failed[@]} -gt 0 ]; then exit 1; fi
}
trap 'tell_failed $?' EXIT
