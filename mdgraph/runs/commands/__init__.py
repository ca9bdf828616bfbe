"""The commands of mdgraph: their options, what they print, and how they end."""
