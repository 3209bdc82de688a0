"""Why two runs differ: readings of the candidate, each proven by replaying the reference under it."""
