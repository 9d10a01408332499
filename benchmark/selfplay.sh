#!/usr/bin/env bash
# Self-play (docs/ppo_selfplay.md): connect four with both kinds of opponents, Pong on both twins with memory and
# without, then every Pong agent against every other, and Atari's Pong for two. Each part can be run alone:
# PARTS="connect_four atari". Settings: see common.sh.
#   OUT=docs/figures benchmark/selfplay.sh
WITHOUT="ENVS BUDGET STEPS TWINS"
source "$(dirname "$0")/common.sh"
PARTS="${PARTS:-connect_four pong atari}"
smoke="$([ "$BUDGET" != smoke ] || echo --elo-games 4 --save-every 0)"

ratings() { # name: copies the ratings of the latest run to OUT
    local file
    [ -z "$DRY_RUN" ] || return 0
    mkdir -p "$OUT"
    for file in "${places[-1]}"/*/elo{,_games}.csv "${places[-1]}"/*/elo.png; do
        [ ! -e "$file" ] || cp "$file" "$OUT/selfplay_$1_$(basename "$file")"
    done
}

for part in $PARTS; do
    case "$part" in
        connect_four)
            flags="--num-envs 256 --gamma 0.99 --gae-lambda 0.95 --learning-rate 1e-3 --ent-coef 0.05"
            for opponents in latest past; do
                train ppo_selfplay.py --env-id pgx/connect_four --opponents "$opponents" --exp-name "$opponents" $flags \
                    $(smoke_or 3000000) --eval-every 300000 --checkpoint-every 300000 --save-every 300000 $smoke $seeds
                ratings "connect_four_$opponents"
            done
            ;;
        pong)
            names=()
            for twin in pomdp mdp; do
                for memory in GRU MLP; do
                    train ppo_selfplay.py --env-id popgym_arcade.environments.pong:PongEasy $(flag_of $twin) \
                        --memory "$memory" $(smoke_or 1000000) --eval-every 100000 $smoke $seeds
                    names+=("pong_${twin}_$memory")
                    ratings "${names[-1]}"
                done
            done
            mapfile -t runs < <(runs_of "*__*")
            for i in "${!names[@]}"; do
                opponent="$(compgen -G "${runs[i]}" || echo "${runs[i]}")"
                analyse evaluate.py "selfplay_against_${names[i]}" --runs "${runs[@]}" --against "$opponent" \
                    --episodes 256 --sample
            done
            pages
            ;;
        atari) # the emulator allows about 2,000 steps per second and core
            train ppo_selfplay.py --env-id atari2p/Pong-v5 --num-envs 16 $(smoke_or 500000) --eval-every 0 \
                --eval-episodes 2 --eval-env-params max_steps_in_episode=2000 --elo-games 4 --seed "$first_seed"
            ;;
        *) refuse "PARTS=$PARTS: use some of connect_four pong atari" ;;
    esac
done
