"""What the analysis scripts share: loading agents, replaying them, and writing results.

An analysis script asks one question of run folders and imports the rest from here. Imports go one way: `colors`,
`command_line` and `output`, `tables` and `reference_returns`, `intervals` and `interquartile`; then `runs` and
`agents`; then `networks`, `trajectories`, `twins` and `matches`; then `recall`, `groups` and `opponent`. They use
`popgym_arcade.baselines`, and need its extra.
"""
