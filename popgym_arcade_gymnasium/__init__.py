"""The ids of popgym_arcade for Gymnasium, for instance "popgym_arcade/NavigatorEasy-v0".

A package of its own, because `popgym_arcade` imports JAX. Registering the ids takes milliseconds; JAX is imported when
the first environment is made.
"""

FAMILIES = (
    *("AutoEncode", "BattleShip", "Breakout", "CartPole", "CountRecall"),
    *("MineSweeper", "Navigator", "NoisyCartPole", "Skittles", "Tetris"),
)
ENV_IDS = tuple(family + level for family in FAMILIES for level in ("Easy", "Medium", "Hard"))


def register(*env_ids: str) -> None:
    """Register ids with Gymnasium, without arguments all thirty. An id that is registered already is left as it is.

    `import popgym_arcade` calls this, and Gymnasium before its version 1.0 through the entry point `gymnasium.envs`.
    """
    from gymnasium.envs import registration

    for env_id in env_ids or ENV_IDS:
        name = f"popgym_arcade/{env_id}-v0"
        if name not in registration.registry:
            registration.register(
                id=name,
                entry_point="popgym_arcade.gymnasium_envs:ArcadeEnv",
                vector_entry_point="popgym_arcade.gymnasium_envs:ArcadeVectorEnv",
                kwargs={"env_id": env_id},
            )
