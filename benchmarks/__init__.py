"""What recording, starting and checking cost, as ratios of runs taken in pairs."""
