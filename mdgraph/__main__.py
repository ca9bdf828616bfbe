"""`python -m mdgraph` is the command `mdgraph`."""

from mdgraph.cli import main

main()
