"""Damage to files: bytes, JSON values, tables, arrays, weights, checkpoints, and things that are no regular files.

Every function takes a `random.Random` and a path, changes the file, and returns what it did in a few words.
"""

import csv
import hashlib
import io
import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Mutation = Callable[[random.Random, Path], str]

DEEP = 200_000  # levels of nesting, far beyond what a recursive parser can read
ODD_STRINGS = (
    *("", " ", "\x00", "\x1b[2J\x1b]0;title\x07", "a\nb", "a\r\nb", "\u202egnp.exe", "\ufeff", "ü" * 3, "文", "\ud800"),
    *("../../outside/secret.txt", "/etc/passwd", "/dev/zero", "=1+1", "-1", "nan", "inf", "1e999", "0x10", "١٢"),
    *("x" * 5000, "{}", "%s%n", "'; drop table samples; --", "<script>alert(1)</script>", "none", "all", ":", "a:b"),
)
ODD_NUMBERS = (
    *(0, -1, 1, 2, 3, 0.5, -0.5, 1e308, -1e308, 1e-308, float("nan"), float("inf"), float("-inf")),
    *(2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
)


def odd_value(random: random.Random, depth: int = 0) -> Any:
    """Return a JSON value of any type."""
    kind = random.randrange(8)
    if kind < 2:
        return random.choice(ODD_STRINGS)
    if kind < 5:
        return random.choice(ODD_NUMBERS)
    if kind == 5:
        return random.choice((None, True, False))
    if depth > 2:
        return [] if kind == 6 else {}
    values = [odd_value(random, depth + 1) for _ in range(random.randrange(4))]
    return values if kind == 6 else {str(random.choice(ODD_STRINGS)): value for value in values}


# Bytes of any file


def truncate(random: random.Random, path: Path) -> str:
    size = path.stat().st_size
    length = random.choice((0, 1, size // 2, max(0, size - 1), random.randrange(size + 1)))
    os.truncate(path, length)
    return f"truncated to {length} of {size} bytes"


def flip_bits(random: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    if not content:
        return "empty already"
    near_start = random.random() < 0.5  # headers are in front
    places = [random.randrange(min(len(content), 200) if near_start else len(content)) for _ in range(8)]
    places = places[: random.choice((1, 1, 2, 8))]
    for place in places:
        content[place] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    return f"bits flipped at {places}"


def overwrite(random: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content) + 1)
    piece = random.choice((b"\x00" * 9, b"\xff" * 9, b"\xff\xfe", b"\x1b[31m", b"\r", b"\n\n\n", random.randbytes(30)))
    content[place : place + random.choice((0, len(piece)))] = piece
    path.write_bytes(content)
    return f"{piece!r} written at {place}"


def replace_content(random: random.Random, path: Path) -> str:
    contents = (
        *(
            b"",
            b"\x00",
            b"PK\x03\x04",
            b"\x93NUMPY\x01\x00",
            b"\x89PNG\r\n\x1a\n",
            b"PAR1",
            b"%!PS-Adobe-3.0 EPSF-3.0\n",
        ),
        *(b"[]", b"{}", b"null", b"0", b'"', b"\xef\xbb\xbf", b"\xff\xfe{\x00}\x00", b"a,b\n1,2\n", b"\n" * 1000),
        *(b"[" * DEEP, b'{"a":' * DEEP, b"\x80\x04K\x01.", random.randbytes(500), b"x" * 3_000_000),
    )
    content = random.choice(contents)
    path.write_bytes(content)
    return f"content replaced by {len(content)} bytes {content[:12]!r}"


def repeat_content(_random: random.Random, path: Path) -> str:
    path.write_bytes(2 * path.read_bytes())
    return "content repeated"


# What is no regular file


def replace_by_other_kind(random: random.Random, path: Path) -> str:
    """Replace the file by a folder, a link, a pipe, a device or a socket, or remove it."""
    outside = path.anchor and Path(os.environ["HOME"]).parent / "outside" / "secret.txt"
    remove(path)
    kind = random.choice(("missing", "folder", "link", "outside", "dangling", "loop", "fifo", "zero", "null", "socket"))
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            try:
                server.bind(str(path))
            except OSError:  # the path is too long for a socket
                kind = "missing"
    elif kind != "missing":
        targets = {"link": path.parent, "outside": outside, "dangling": "nowhere", "loop": path.name}
        path.symlink_to({**targets, "zero": "/dev/zero", "null": "/dev/null"}[kind])
    return f"replaced by: {kind}"


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# JSON


def change_json(random: random.Random, path: Path) -> str:
    """Change one value at a random place, also in one line of a .jsonl file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    number = random.randrange(len(lines))
    content = json.loads(lines[number])
    what = _change_value(random, content)
    if random.random() < 0.05:
        content, what = odd_value(random), "whole content"
    lines[number] = json.dumps(content)
    if random.random() < 0.05:
        lines[number] = lines[number].replace(":", ': {"a": ' + "[" * DEEP, 1)
        what += ", and nested"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return f"JSON changed: {what}"


def _change_value(random: random.Random, content: Any) -> str:
    if not isinstance(content, (dict, list)) or not content:
        return "nothing"
    key = random.choice(list(content) if isinstance(content, dict) else range(len(content)))
    if isinstance(content[key], (dict, list)) and content[key] and random.random() < 0.75:
        return f"{key} / {_change_value(random, content[key])}"
    action = random.randrange(6)
    if action == 0:
        del content[key]
        return f"{key} removed"
    if action == 1 and isinstance(content, dict):
        content[str(random.choice(ODD_STRINGS))] = content[key]
        return f"{key} copied to another key"
    if action == 1:
        content.append(content[key])
        return f"{key} appended again"
    content[key] = odd_value(random)
    return f"{key} = {str(content[key])[:40]!r}"


# Tables


def change_table(random: random.Random, path: Path) -> str:
    """Change columns, cells, quotes or line ends of a CSV or TSV file."""
    separator = "\t" if path.suffix == ".tsv" else ","
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter=separator))
    what = _change_rows(random, rows)
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows(rows)
    content = text.getvalue().encode("utf-8", "surrogatepass")
    ending = random.randrange(12)
    if ending == 0:
        content, what = content.replace(b"\r\n", b"\r"), f"{what}; CR as line end"
    elif ending == 1:
        content, what = b"\xef\xbb\xbf" + content, f"{what}; byte order mark"
    elif ending == 2:
        content, what = content + b'"open quote,' + b"z" * random.choice((5, 200_000)), f"{what}; open quote"
    elif ending == 3:
        content, what = text.getvalue().encode("utf-16", "surrogatepass"), f"{what}; UTF-16"
    path.write_bytes(content)
    return what


def _change_rows(random: random.Random, rows: list[list[str]]) -> str:
    return (_change_columns if random.random() < 0.5 else _change_cells)(random, rows)


def _change_columns(random: random.Random, rows: list[list[str]]) -> str:
    column, action = random.randrange(len(rows[0])), random.randrange(4)
    name = rows[0][column]
    if action == 0:
        for cells in rows:
            del cells[column : column + 1]
        return f"column {name!r} removed"
    if action == 1:
        for cells in rows:
            cells.append(cells[column])
        return f"column {name!r} repeated"
    if action == 2:
        rows[0][column] = random.choice(ODD_STRINGS)
        return f"column {name!r} renamed {rows[0][column][:20]!r}"
    value = random.choice(ODD_STRINGS)
    for cells in rows[1:]:
        cells[column] = value
    return f"all cells of {name!r} are {value[:20]!r}"


def _change_cells(random: random.Random, rows: list[list[str]]) -> str:
    column, row, action = random.randrange(len(rows[0])), random.randrange(len(rows)), random.randrange(8)
    if action == 0:
        del rows[random.choice((0, 1, 2)) :]
        return f"{len(rows)} lines left"
    if "annotator" in rows[0] and random.random() < 0.1:
        rows += rows[1:] * 1000
        return "all lines 1000 times"
    if action == 1:
        rows[row] = rows[row] * random.choice((2, 50))
        return f"line {row} is longer"
    if action == 2:
        rows[row] = rows[row][:column]
        return f"line {row} is shorter"
    if action == 3:
        rows.insert(row, [])
        return f"empty line {row}"
    if action == 4:
        rows[row][column] = "y" * 200_000  # beyond the limit of Python's csv module
        return f"cell {row}, {column} has 200,000 characters"
    rows[row][column] = random.choice((*ODD_STRINGS, *map(str, ODD_NUMBERS)))
    return f"cell {row}, {column} is {rows[row][column][:20]!r}"


def change_parquet(random: random.Random, path: Path) -> str:
    """Write a Parquet file again with a column of another type, or with another name."""
    import pyarrow as arrow
    from pyarrow import parquet

    columns = parquet.read_table(path).to_pydict()
    name = random.choice(list(columns))
    n = len(columns[name])
    odd: dict[str, Any] = {
        "lists": [[1]] * n,
        "structs": [{"a": 1}] * n,
        "bytes": [b"\xff\xfe"] * n,
        "numbers": [float("nan")] * n,
        "nulls": [None] * n,
        "booleans": [True] * n,
        "integers": [2**62] * n,
        "strings": [random.choice(ODD_STRINGS[:10])] * n,
    }
    kind = random.choice([*odd, "removed", "renamed", "no rows", "no columns"])
    if kind in odd:
        columns[name] = odd[kind]
    elif kind == "renamed":
        columns[str(random.choice(ODD_STRINGS[:10]))] = columns.pop(name)
    elif kind == "removed":
        del columns[name]
    elif kind == "no rows":
        columns = {key: [] for key in columns}
    else:
        columns = {}
    parquet.write_table(arrow.table(columns), path)
    return f"column {name!r}: {kind}"


# Arrays and weights


def odd_array(random: random.Random, array: np.ndarray) -> tuple[np.ndarray, str]:
    """Return an array of another shape, type or content."""
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        choices: dict[str, Callable[[], np.ndarray]] = {
            "no rows": lambda: array[:0],
            "one row": lambda: array[:1],
            "flat": lambda: flat,
            "scalar": lambda: np.array(0),
            "more dimensions": lambda: array[..., None, None],
            "transposed": lambda: array.T,
            "Fortran order": lambda: np.asfortranarray(array),
            "strings": lambda: array.astype("U10"),
            "bytes": lambda: array.astype("S10"),
            "complex": lambda: np.zeros(array.shape, complex),
            "half": lambda: np.zeros(array.shape, np.float16),
            "big-endian": lambda: np.zeros(array.shape, ">f8"),
            "dates": lambda: np.zeros(array.shape, "datetime64[s]"),
            "records": lambda: np.zeros(array.shape, [("a", "f4"), ("b", "i4")]),
            "uint64": lambda: np.full(array.shape, 2**64 - 1, np.uint64),
            "NaN": lambda: np.full(array.shape, np.nan),
            "infinite": lambda: np.full(array.shape, np.inf),
            "huge": lambda: np.full(array.shape, 1e300),
            "negative": lambda: np.full(array.shape, -5),
            "booleans": lambda: np.zeros(array.shape, bool),
            "objects": lambda: np.full(array.shape, None, object),
        }
        kind = random.choice(list(choices))
        return choices[kind](), kind


def change_npz(random: random.Random, path: Path) -> str:
    with np.load(path, allow_pickle=True) as file:
        arrays = dict(file)
    name = random.choice(list(arrays))
    if random.random() < 0.15:
        del arrays[name]
        what = "removed"
    else:
        arrays[name], what = odd_array(random, arrays[name])
    if random.random() < 0.1:
        arrays[random.choice(("x", "extra", "x_clean", "y_clean", "../up"))] = arrays.get(name, np.zeros(3))
    (np.savez_compressed if random.random() < 0.3 else np.savez)(path, **arrays)
    return f"array {name}: {what}"


def change_npy(random: random.Random, path: Path) -> str:
    array, what = odd_array(random, np.load(path, allow_pickle=True))
    np.save(path, array)
    if random.random() < 0.3:
        content = path.read_bytes()
        claim = random.choice((b"(99999999999,)", b"(-5,)", b"(" + 40 * b"1," + b")", b"('a',)"))
        start = content.index(b"'shape': ") + 9
        end = content.index(b")", start) + 1
        header = content[:start] + claim + content[end:]
        path.write_bytes(header)
        what += f", claims the shape {claim!r}"
    return f"array: {what}"


def change_safetensors(random: random.Random, path: Path) -> str:
    """Change the header of a safetensors file, or the numbers of a tensor."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    name = random.choice([key for key in header if key != "__metadata__"])
    kind = random.choice(("values", "header", "removed", "renamed", "length"))
    if kind == "values":
        start, end = header[name]["data_offsets"]
        if header[name]["dtype"] == "I64":
            start += 8 * random.choice((0, random.randrange((end - start) // 8)))
            value = random.choice((-1, 0, 1, 2, 2**40, 2**63 - 1, -(2**63)))
            body[start : start + 8] = struct.pack("<q", value)
        else:
            value = random.choice((float("nan"), float("inf"), 3e38))
            body[start:end] = struct.pack("<f", value) * ((end - start) // 4)
    elif kind == "header":
        kind += " " + _change_value(random, header[name])
    elif kind == "removed":
        del header[name]
    elif kind == "renamed":
        header[str(random.choice(ODD_STRINGS[:5]))] = header.pop(name)
    text = json.dumps(header).encode()
    length = random.choice((0, 2**63, len(text) * 2)) if kind == "length" else len(text)
    path.write_bytes(struct.pack("<Q", length) + text + body)
    return f"tensor {name}: {kind}"


def renew_digests_of_pack(folder: Path) -> None:
    """Write the digests and sizes of the files into the index of a pack, as a stranger could; not if it is damaged."""
    if not all(file.is_file() for file in folder.iterdir()):  # a pipe or a device would be read for ever
        return
    files = {file.name: file for file in folder.iterdir()}  # the index may name any path, /dev/zero among them
    try:
        index = json.loads(files["pack.json"].read_bytes())
        index["digests"] = {name: hashlib.sha256(files[name].read_bytes()).hexdigest() for name in index["digests"]}
        for shard in index["shards"]:
            content = files[shard["file"]].read_bytes()
            shard |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (folder / "pack.json").write_text(json.dumps(index))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return


def change_checkpoint(random: random.Random, path: Path) -> str:
    """Change a value in a checkpoint and write it with a valid digest, as a stranger could."""
    from metalabelnet.train import checkpoint

    state = checkpoint.load(path, torch.device("cpu"))
    what = _change_state(random, state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path.write_bytes(checkpoint.HEADER + hashlib.sha256(content).digest() + content)
    return f"state changed: {what}"


def _change_state(random: random.Random, state: Any) -> str:
    if not isinstance(state, (dict, list)) or not state:
        return "nothing"
    key = random.choice(list(state) if isinstance(state, dict) else range(len(state)))
    value = state[key]
    if isinstance(value, (dict, list)) and value and random.random() < 0.8:
        return f"{key} / {_change_state(random, value)}"
    action = random.randrange(5)
    if action == 0:
        del state[key]
        return f"{key} removed"
    if action == 1 and isinstance(value, torch.Tensor):
        choices = (value.double(), value.reshape(-1), value[..., None], value.long(), torch.full_like(value, 9**8))
        state[key] = random.choice([*choices, *([value * float("nan")] if value.is_floating_point() else [])])
        return f"{key}: another tensor"
    if action == 2 and isinstance(state, dict):
        state[random.choice(("__class__", "extra", "net", 7))] = value
        return f"{key} copied to another key"
    state[key] = random.choice((*ODD_STRINGS[:8], *ODD_NUMBERS, None, [], {}, torch.zeros(0), torch.zeros(3, 3)))
    return f"{key} = {str(state[key])[:30]!r}"


def change_python(random: random.Random, path: Path) -> str:
    """Put an error into a user's network."""
    line = random.choice(
        ("raise KeyError('x')", "1 / 0", "def x(:", "import no_such_module", "\x00", "raise SystemExit(3)", "\xff")
    )
    text = path.read_text(encoding="utf-8")
    place = random.choice(("before", "inside"))
    text = (
        f"{line}\n{text}"
        if place == "before"
        else text.replace("        return self", f"        {line}\n        return self")
    )
    path.write_text(text, encoding="latin-1")
    return f"{line!r} {place}"


BYTES: tuple[Mutation, ...] = (truncate, flip_bits, overwrite, replace_content, repeat_content, replace_by_other_kind)
BY_SUFFIX: dict[str, Mutation] = {
    ".json": change_json,
    ".jsonl": change_json,
    ".csv": change_table,
    ".tsv": change_table,
    ".parquet": change_parquet,
    ".npz": change_npz,
    ".npy": change_npy,
    ".safetensors": change_safetensors,
    ".pt": change_checkpoint,
    ".py": change_python,
}


def mutate(random: random.Random, path: Path) -> str:
    """Change a file at random: by its format where it has one, else its bytes or its kind."""
    by_format = BY_SUFFIX.get(path.suffix)
    mutation = by_format if by_format is not None and random.random() < 0.65 else random.choice(BYTES)
    assert mutation is not None
    return f"{path.name}: {mutation(random, path)}"
