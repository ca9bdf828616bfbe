"""`mdgraph analyse`: what frames of a trajectory tell, as a page with pictures and as tables."""
