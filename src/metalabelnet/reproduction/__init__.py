"""Reproduction of the paper: its numbers, its experiments as lists of runs, and tables and figures of our results."""
