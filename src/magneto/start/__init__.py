"""Analysis of a user's data for `magneto start`: fitting tasks, derived recipes, and baselines."""
