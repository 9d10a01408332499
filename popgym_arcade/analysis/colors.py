"""One colour for each memory, the same in every picture."""

import re
from collections.abc import Sequence

MEMORY_COLORS = {
    "none": "black",
    "MLP": "#7f7f7f",
    "MinGRU": "#1f77b4",
    "GRU": "#ff7f0e",
    "LRU": "#2ca02c",
    "FART": "#d62728",
    "LSTM": "#9467bd",
    "FFM": "#8c564b",
    "Attention": "#e377c2",
    "GDN": "#17becf",
}


def colors_of(groups: Sequence[str]) -> dict[str, str]:
    """A colour for each group: that of the memory in its name ("pqn_rnn+GRU"), or the next of matplotlib's ten colours
    if not every group names a memory of its own.
    """
    words = [re.split(r"[+, ]+", group.replace("no memory", "none")) for group in groups]
    memories = [next(filter(MEMORY_COLORS.get, each), None) for each in words]
    if None in memories or len(set(memories)) < len(groups):
        return {group: f"C{number % 10}" for number, group in enumerate(groups)}
    return {group: MEMORY_COLORS[memory] for group, memory in zip(groups, memories, strict=True)}
