"""A run that is interrupted and resumed, held against the same run without the interruption."""
