"""Short texts with topics, some of them wrong, and a few that were checked.

    python examples/text.py [FOLDER]

It makes 600 sentences of three topics, a quarter with a wrong one, and calls the command line.
"""

import csv
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np

from metalabelnet.cli import main

TOPICS = {
    "sport": ["the team", "a player", "the goal", "this match", "the league", "her coach", "a penalty", "the season"],
    "money": ["the bank", "a share", "the market", "this price", "the budget", "his loan", "a tax", "the quarter"],
    "weather": ["the rain", "a storm", "the wind", "this cloud", "the frost", "that heat", "a flood", "the forecast"],
}
VERBS = ("changed", "surprised", "followed", "worried", "helped", "beat")


def sentence(topic: str, random: np.random.Generator) -> str:
    """Two things that something happens to, and now and then one of another topic."""
    other = str(random.choice(list(TOPICS)))
    first, second = (str(random.choice(TOPICS[topic if random.random() < 0.8 else other])) for _ in range(2))
    return f"{first} {random.choice(VERBS)} {second} {random.choice(TOPICS[topic])}"


def make(folder: Path) -> None:
    """Write the texts, and some without a topic."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    names = list(TOPICS)
    with (folder / "texts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "topic", "checked"])
        for number in range(600):
            topic, checked = names[number % 3], number < 60
            said = names[(number + 1) % 3] if not checked and random.random() < 0.25 else topic
            writer.writerow([sentence(topic, random), said, int(checked)])
    with (folder / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["id", "text"], *([f"{t} {k}", sentence(t, random)] for t in names for k in range(10))]
        )


def run(command: str) -> None:
    """Call the command line, as a shell would."""
    print(f"$ metalabelnet {command}", flush=True)
    if main(shlex.split(command)):
        sys.exit(1)


if __name__ == "__main__":
    here = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    make(here)
    run(f"train '{here}/texts.csv' --label topic --clean-column checked --epochs 12 --warmup 5 --out '{here}/run'")
    run(f"predict '{here}/run' '{here}/new.csv' -o '{here}/new topics.csv'")
    with (here / "new topics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["id"].startswith(row["label"]) for row in rows)
    print(f"{right} of {len(rows)} new texts right")
