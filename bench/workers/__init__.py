"""What do several processes lose against one? `python -m bench.workers` says."""
