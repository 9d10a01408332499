"""Policy churn: how many greedy actions change while an agent learns (Schaul et al. 2022).

https://arxiv.org/abs/2206.00730. A minibatch that is read for gradient step k was played with parameters k gradient
steps older, so comparing its greedy actions with those at that time takes no further forward pass.
"""

from typing import Any

import jax

from popgym_arcade.baselines.errors import UserError

CHURN = {"churn_per_step": 1, "churn_per_rollout": -1}  # the minibatch that shows it


def check_churn(args: Any) -> None:
    """Raises UserError if --log-churn has nothing to compare, because a rollout is read only once."""
    if args.log_churn and args.num_minibatches * args.update_epochs == 1:
        raise UserError("--log-churn compares gradient steps: use --num-minibatches or --update-epochs 2 or more")


def changed(q: jax.Array, greedy: jax.Array) -> jax.Array:
    """The share of steps, float32 [], whose greedy action by q[..., A] is no longer `greedy` [...], as when played."""
    return (q.argmax(axis=-1) != greedy).mean()


def churn_sums(args: Any, shares: jax.Array) -> dict[str, jax.Array]:
    """Churn after one gradient step, and at the last minibatch of a rollout; nothing without --log-churn.

    `shares` [k] are those of `changed` in minibatch k.
    """
    return {name: shares[k] for name, k in CHURN.items()} if args.log_churn else {}


def churn_curves(sums: dict) -> dict[str, Any]:
    """The means of `churn_sums` over the updates since the last point."""
    return {f"charts/{name}": sums[name] / sums["updates"] for name in CHURN if name in sums}
