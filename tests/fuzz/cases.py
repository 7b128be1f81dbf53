"""The cases of the fuzzer: commands with damaged files or arguments.

A case depends on the seed and its number only, so that it can be repeated alone.
"""

import argparse
import os
import random
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import mutations

from metalabelnet.cli.parser import make_parser

FAST = "--epochs 2 --warmup 1 --batch-size 16 --lr 0.05 --device cpu"
NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.fc = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.fc(x)

def make(shape, classes):
    return Net(shape, classes)
"""
RESUME = (
    f"train small.npz --clean 18 {FAST} --epochs 4 --method METHOD --out run-METHOD --resume --checkpoint-seconds 0"
)
RESUMABLE = ("metalabelnet", "co-teaching", "pencil")  # label nets, two networks, a table of soft labels

# Commands, each with the files that may be damaged. A folder stands for one file in it.
COMMANDS: list[tuple[str, tuple[str, ...]]] = [
    (f"train small.npz --clean 18 {FAST} --out out", ("small.npz",)),
    (f"train small.npz --clean 18 --noise uniform:0.4 --unlabeled 9 --limit 50 {FAST} --out out", ("small.npz",)),
    (f"train small.npz --clean 18 --noise file:noise.npy {FAST} --out out", ("noise.npy",)),
    (f"train small.npz --clean 18 --noise file:noise.csv {FAST} --out out", ("noise.csv",)),
    (f"train small.npz --clean 18 --noise matrix:matrix.csv {FAST} --out out", ("matrix.csv",)),
    (f"train small.npz --clean 18 --noise feature:0.3 --noise-probs probs.npy {FAST} --out out", ("probs.npy",)),
    (f"train small.npz --clean clean-rows.csv {FAST} --out out", ("clean-rows.csv",)),
    (f"train clean.npz {FAST} --out out", ("clean.npz",)),
    (f"train photos --clean clean.csv --image-size 8 {FAST} --out out", ("photos", "clean.csv")),
    (f"train photos --clean clean.csv --on-error skip --memory-limit 0 {FAST} --out out", ("photos", "clean.csv")),
    (f"train photos --clean clean-photos {FAST} --out out", ("clean-photos",)),
    (
        f"train photos.csv --clean clean-paths.csv --on-error skip {FAST} --out out",
        ("photos.csv", "photos", "clean-paths.csv"),
    ),
    (f"train table.csv --clean-column checked {FAST} --out out", ("table.csv",)),
    (f"train table.tsv --clean-column checked --test test.csv {FAST} --out out", ("table.tsv", "test.csv")),
    (f"train table.parquet --label label --clean-column checked {FAST} --out out", ("table.parquet",)),
    (f"train news.csv --clean-column checked {FAST} --out out", ("news.csv",)),
    (f"train small.npz --clean 18 --net nets.py:make {FAST} --out out", ("nets.py",)),
    *((RESUME.replace("METHOD", method), (f"run-{method}",)) for method in RESUMABLE),
    *((RESUME.replace("METHOD", method), (f"run-{method}/checkpoint",)) for method in RESUMABLE),
    (f"compare small.npz --clean 18 --methods gce,fine-tune --seeds 1 --jobs 1 {FAST} --out out", ("small.npz",)),
    (
        f"compare small.npz --clean 18 --methods gce,fine-tune --seeds 1 --jobs 1 {FAST} --out compared --resume",
        ("compared/gce-seed0", "compared/fine-tune-seed0"),
    ),
    ("pack photos -o out", ("photos",)),
    ("pack photos -o out --decode --image-size 8 --on-error skip", ("photos",)),
    ("pack photos.csv --clean clean-paths.csv -o out", ("photos.csv", "photos", "clean-paths.csv")),
    ("pack photos --clean clean.csv --test clean-photos --decode -o out", ("clean.csv", "clean-photos")),
    ("pack photos -o packed", ("packed", "photos")),
    ("pack photos -o packed-pixels --decode --image-size 8", ("packed-pixels",)),
    ("pack photos -o packed-half", ("packed-half", "photos")),
    (f"train packed --clean clean.csv --workers 0 --method gce {FAST} --out out", ("packed", "clean.csv")),
    (f"train packed --clean clean.csv --workers 1 --image-size 8 --method gce {FAST} --out out", ("packed",)),
    (f"train packed-pixels --clean clean.csv --method gce {FAST} --out out", ("packed-pixels",)),
    ("labels run-pack --suspects --format fiftyone", ("run-pack", "packed-pixels")),
    ("report run-pack -o out.html", ("run-pack", "packed-pixels")),
    ("review run-pack --export labels -o out.csv", ("run-pack", "packed-pixels")),
    ("review packed --export labels", ("packed",)),
    (f"train table.csv --clean-column checked --annotations crowd.csv {FAST} --out out", ("crowd.csv", "table.csv")),
    ("train table.csv --clean-column checked --annotations crowd.csv --device cpu --out out", ("crowd.csv",)),
    (
        f"train photos --clean clean.csv --annotations crowd-photos.csv --method gce {FAST} --out out",
        ("crowd-photos.csv", "photos"),
    ),
    (f"train small.npz --clean clean-rows.csv --annotations crowd-rows.csv {FAST} --out out", ("crowd-rows.csv",)),
    ("labels run-crowd -o out.csv", ("run-crowd", "crowd.csv", "table.csv")),
    ("report run-crowd -o out.html", ("run-crowd", "crowd.csv", "table.csv")),
    ("review run-crowd --export annotations", ("run-crowd", "crowd.csv", "table.csv")),
    ("review run-npz --export labels", ("run-npz", "small.npz")),
    ("labels run-npz -o out.csv", ("run-npz",)),
    ("labels run-table --suspects", ("run-table",)),
    ("labels run-npz --top 3 --format cleanlab -o out.csv", ("run-npz",)),
    ("labels run-photos --format label-studio -o out.json", ("run-photos", "photos")),
    ("labels run-photos --suspects --format fiftyone", ("run-photos", "photos")),
    ("labels run-text --format label-studio", ("run-text", "news.csv")),
    ("labels run-npz --data small.npz -o out.csv", ("run-npz", "small.npz")),
    ("predict run-npz small.npz -o out.csv", ("run-npz", "small.npz")),
    ("predict run-photos photos -o out.csv --on-error skip", ("run-photos", "photos")),
    ("predict run-photos photos.csv", ("run-photos", "photos.csv")),
    ("predict run-table table.csv -o out.csv", ("run-table", "table.csv")),
    ("predict run-table table.parquet", ("run-table", "table.parquet")),
    ("predict run-pack photos -o out.csv", ("run-pack",)),
    ("predict run-text news.csv --id text", ("run-text", "news.csv")),
    ("predict run-net small.npz --net nets.py:make -o out.csv", ("run-net", "nets.py")),
    ("report run-npz -o out.html", ("run-npz",)),
    ("report run-photos run-npz -o out.html", ("run-photos", "photos")),
    ("report compared/gce-seed0 compared/fine-tune-seed0", ("compared/gce-seed0",)),
    ("report run-table run-text -o out.html", ("run-table", "run-text", "table.csv", "news.csv")),
    ("review run-photos --export labels -o out.csv", ("run-photos", "photos")),
    ("review run-table --export clean --drawn", ("run-table", "table.csv")),
    ("review run-npz --export verdicts", ("run-npz",)),
    ("review run-text", ("run-text", "news.csv")),
    ("review photos --db verdicts.sqlite --export clean", ("photos", "verdicts.sqlite")),
    ("review table.csv --export labels", ("table.csv",)),
    ("reproduce fig-losses --list --results results", ("results",)),
    ("reproduce cifar10n --tables-only --results results --figures figures", ("results",)),
    ("reproduce fig-losses --tables-only --results results --figures figures --doc page.md", ("page.md", "results")),
    ("methods", ()),
    ("methods gce", ()),
    ("datasets", ()),
    ("noises", ()),
]
EXPORT = ("export run-npz --onnx out.onnx", ("run-npz",))  # takes seconds
SLOW_SHARE = 0.002

# Values of options, besides odd ones. An absolute path is never the value of an option that writes.
WORDS = (
    *(
        "small.npz",
        "photos",
        "table.csv",
        "table.parquet",
        "news.csv",
        "clean.csv",
        "noise.npy",
        "probs.npy",
        "nowhere",
    ),
    *("run-npz", "run-photos", "nets.py:make", "nets.py:none", "os:system", "cnn8", "mlp", "small-cnn", "digits"),
    *(
        "uniform:0.4",
        "class:0.9",
        "feature:0.2",
        "file:noise.npy",
        "matrix:matrix.csv",
        "gce",
        "gce,mlnt",
        "paper",
        "own",
    ),
    *("label", "id", "text", "width", "width,noise", "checked", "path", "skip", "float64", "bf16", "eager", "compiled"),
    *("csv", "fiftyone", "cuda", "meta", "cpu", "hopper", "given", "flip-crop", "beta=1", "gce.q=0.5", "outside", "."),
)
ODD_ARGUMENTS = (
    *(
        "",
        " ",
        "\x1b[2J",
        "a\nb",
        "\u202egnp.exe",
        "ü文",
        "\udcff",
        "../outside/secret.txt",
        "nan",
        "inf",
        "-1",
        "1e999",
    ),
    *("0", "1", "2", "3", "0.5", "1e-30", "1e30", str(2**31), str(2**63), str(2**64), str(10**30), str(10**400)),
    *(
        "9" * 5000,
        "x" * 5000,
        "x" * 200,
        "all",
        "none",
        "-",
        "--",
        ",",
        ":",
        "=",
        "a=b",
        "a:b",
        "%s",
        "0x10",
        "١٢",
        "1,2",
    ),
)
NUMBERS = ("0", "1", "2", "8", "64", "-1", "-0.0", "0.3", "1e-300", "1e30", "nan", "-inf", str(2**31), str(10**18))
DATA_OF_RUN = {
    **dict.fromkeys(("run-npz", "run-net", "compared"), "small.npz"),
    "run-photos": "photos clean.csv",
    "photos.csv": "photos",
    "run-text": "news.csv",
    "run-table": "table.csv",
    "run-pack": "packed-pixels clean.csv",
    "run-crowd": "table.csv crowd.csv",
}
OUTPUT_OPTIONS = ("-o", "--output", "--out", "--onnx", "--db", "--results", "--figures", "--doc")
# Each starts a process or a download.
LEFT_OUT = {"--jobs": ("0", "-1", "x", "1"), "--pretrained": ("nets.py",), "--concurrent": ("0", "-1", "1", "2")}


@dataclass
class Case:
    """A command to run in a copy of the fixtures, with what was changed."""

    number: int
    arguments: list[str]
    damage: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        return self.arguments[0] if self.arguments else ""


def make_case(seed: int, number: int, fixtures: Path, work: Path) -> Case:
    """Copy the fixtures of a case to `work`, damage them, and return the command."""
    chosen = random.Random(f"{seed} {number}")
    text, files = EXPORT if chosen.random() < SLOW_SHARE else chosen.choice(COMMANDS)
    case, what = Case(number, text.split()), chosen.random()
    if not files or what > 0.6:
        for _ in range(chosen.choice((1, 1, 2, 3))):
            change_arguments(chosen, case)
    copy_fixtures(fixtures, work, f"{shlex.join(case.arguments)} {' '.join(files)}")
    if files and what < 0.7:
        for _ in range(chosen.choice((1, 1, 1, 2))):
            damage_file(chosen, case, work / chosen.choice(files))
    return case


def copy_fixtures(fixtures: Path, work: Path, words: str) -> None:
    """Copy the files and folders that these words name, and the data of the runs among them."""
    words += " " + " ".join(data for run, data in DATA_OF_RUN.items() if run in words)
    work.mkdir()
    for entry in sorted(fixtures.iterdir()):
        if entry.name in words and entry.is_dir():
            shutil.copytree(entry, work / entry.name, copy_function=shutil.copyfile)
        elif entry.name in words:
            shutil.copyfile(entry, work / entry.name)


def damage_file(chosen: random.Random, case: Case, place: Path) -> None:
    """Damage a file, or one of those in a folder. Digests of a run are mostly removed, so that the rest is tested."""
    in_run = place.name.startswith("run-") or place.parent.name == "compared"
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.is_file() and not file.is_symlink())
        if in_run:
            files = [file for file in files if file.parent.name != "checkpoint"]
        if not files or chosen.random() < 0.03:
            case.damage.append(f"{place.name}: {mutations.replace_by_other_kind(chosen, place)}")
            return
        place = chosen.choice(files)
    if not place.is_file() or place.is_symlink():  # damaged before
        return
    try:
        case.damage.append(mutations.mutate(chosen, place))
    except Exception:
        case.damage.append(mutations.truncate(chosen, place))  # damaged before: it cannot be parsed any more
    if in_run and chosen.random() < 0.8:
        mutations.remove(place.parent / "digests.json")
    if place.parent.name.startswith("packed") and chosen.random() < 0.7:
        mutations.renew_digests_of_pack(place.parent)


def change_arguments(chosen: random.Random, case: Case) -> None:
    """Replace, add, remove or repeat a word."""
    words, action = case.arguments, chosen.randrange(12)
    place = chosen.randrange(1, len(words) + 1)
    if action == 0 and place < len(words) and words[place - 1] not in OUTPUT_OPTIONS:
        words[place] = chosen.choice(ODD_ARGUMENTS + WORDS)
    elif action == 1 and place < len(words) and words[place] not in ("--epochs", "--jobs", "--seeds"):
        del words[place]
    elif action == 2 and place < len(words):
        words.insert(place, words[place])
    elif action == 3:
        words.insert(place, chosen.choice(ODD_ARGUMENTS[:14] + WORDS))
    else:
        add_option(chosen, words)
    if words[0] == "reproduce" and not {"--list", "--tables-only"} & {*words}:
        words.append("--tables-only")  # training takes hours


def add_option(chosen: random.Random, words: list[str]) -> None:
    """Add an option of the command with any value."""
    (commands,) = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    if words[0] not in commands.choices:
        return
    actions = [a for a in commands.choices[words[0]]._actions if a.option_strings and a.dest not in ("help", "open")]
    if not actions:
        return
    action = chosen.choice(actions)
    name = action.option_strings[-1]
    if action.nargs == 0:
        words.append(name)
        return
    if name in LEFT_OUT:
        values: tuple[str, ...] = LEFT_OUT[name]
    elif name in ("--epochs", "--seeds", "--snapshots"):
        values = ("0", "-1", "1", "2", "x", "", "nan", "1.5", str(2**63), str(10**400), "9" * 5000)
    elif action.type in (int, float) and chosen.random() < 0.8:
        values = NUMBERS
    else:
        values = ODD_ARGUMENTS + WORDS
    value = chosen.choice(values)
    words.extend([f"{name}={value}"] if name.startswith("--") and chosen.random() < 0.5 else [name, value])


def output_places(arguments: list[str], work: Path) -> list[Path]:
    """Return where a command may write: the values of its output options, and its default places."""
    places = ["runs", "report.html", "docs", "results"]
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if word.startswith("-o") and word != "-o":
            places.append(word[2:])
        if (
            any(option.startswith(name) for option in (*OUTPUT_OPTIONS, "--data-dir"))
            and name.startswith("-")
            and len(name) > 1
        ):
            places.append(value if equals else following)
    return [Path(os.path.normpath(work / place)) for place in places if place and "\x00" not in place]
