"""Short texts with topics, some of them wrong, and a column that marks the clean rows.

    python examples/text.py [FOLDER]

The script writes 600 sentences on three topics, a quarter of them with a wrong topic. Then it runs the command line.
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


def make_sentence(topic: str, random: np.random.Generator) -> str:
    """Return a sentence of words from its topic, with some words from other topics."""
    other = str(random.choice(list(TOPICS)))
    first, second = (str(random.choice(TOPICS[topic if random.random() < 0.8 else other])) for _ in range(2))
    return f"{first} {random.choice(VERBS)} {second} {random.choice(TOPICS[topic])}"


def make(folder: Path) -> None:
    """Write the labeled texts, and new texts without a topic."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    names = list(TOPICS)
    with (folder / "texts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "topic", "checked"])
        for number in range(600):
            topic, checked = names[number % 3], number < 60
            given = names[(number + 1) % 3] if not checked and random.random() < 0.25 else topic
            writer.writerow([make_sentence(topic, random), given, int(checked)])
    with (folder / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["id", "text"], *([f"{t} {k}", make_sentence(t, random)] for t in names for k in range(10))]
        )


def run(command: str) -> None:
    """Run a command of the command line."""
    print(f"$ metalabelnet {command}", flush=True)
    if main(shlex.split(command)):
        sys.exit(1)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    make(folder)
    run(f"train '{folder}/texts.csv' --label topic --clean-column checked --out '{folder}/run'")
    run(f"predict '{folder}/run' '{folder}/new.csv' -o '{folder}/new topics.csv'")
    with (folder / "new topics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    correct = sum(row["id"].startswith(row["label"]) for row in rows)
    print(f"{correct} of {len(rows)} new texts correct")
