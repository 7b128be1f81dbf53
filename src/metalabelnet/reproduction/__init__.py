"""The paper again: its numbers as data, its runs as recipes, and its tables and figures from what was run."""
