"""Files in and out: structures, trajectories, logs, and files that appear whole or not at all."""
