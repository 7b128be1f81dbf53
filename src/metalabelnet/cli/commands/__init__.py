"""One module per command. They are imported when the command runs, so that `--help` does not import PyTorch."""
