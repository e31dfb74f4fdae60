"""Analysis of a user's data for `magneto start`: possible tasks, derived recipes, and baselines."""
