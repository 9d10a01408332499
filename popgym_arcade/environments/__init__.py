"""The games, one per file; `arcade.py` and `screen.py` hold what they share."""
