"""The run itself: command line, run folder, checkpoints, curves, evaluation, videos, signals."""
