"""All trainers, on all tasks, under all recipes: what the oracle says of each, in one table."""
