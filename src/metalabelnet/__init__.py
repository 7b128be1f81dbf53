"""Train classifiers on labels nobody trusts, with a small set somebody does."""

__version__ = "0.1.0"
