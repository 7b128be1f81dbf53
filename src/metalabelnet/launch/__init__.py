"""Running several trainings: a process pool on the CPU, concurrent runs on one GPU."""
