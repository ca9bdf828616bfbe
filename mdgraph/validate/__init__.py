"""What judges a potential against physics: bonds, stability, liquids, crystals, held-out frames."""
