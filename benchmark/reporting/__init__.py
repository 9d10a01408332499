"""What benchmark/report.py is made of: rows of runs, cells, statistics, tables, all ids together, pictures."""
