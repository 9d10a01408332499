"""Everything that is the same for every run.

A training script contains the algorithm and imports the rest from here. Imports go one way: `errors`; `jax_defaults`;
`devices` (where arrays live) and `networks` (memories, fast convolutions); `env_params`, `environment`, `scripts`,
`limits`, `normalization`, `episode`, `arguments`, `tasks`, `replay` and `seats`; `running` (the run folder,
checkpoints, curves, evaluation, signals). Needs the extra `baselines`.
"""
