"""Folders as `save_to_disk` of Hugging Face `datasets` writes them, and images in cells."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
from pyarrow import ipc

from user_data import picture

KINDS = ("left", "middle", "right")


def image_bytes(kind: int, seed: int, form: str = "PNG") -> bytes:
    content = io.BytesIO()
    picture(kind, np.random.default_rng(seed)).save(content, form)
    return content.getvalue()


def image_table(count: int = 24, *, as_struct: bool = True) -> Any:
    """Return images in cells, class numbers (−1: unlabeled) and marks of clean rows, with the types of the columns."""
    kinds = [k % 3 for k in range(count)]
    images = [image_bytes(kind, seed, "PNG" if seed % 2 else "JPEG") for seed, kind in enumerate(kinds)]
    cells = [{"bytes": content, "path": f"{k}.png"} for k, content in enumerate(images)] if as_struct else images
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": list(KINDS)},
        "checked": {"_type": "Value", "dtype": "bool"},
    }
    labels = [-1 if k == count - 1 else kind for k, kind in enumerate(kinds)]
    table = arrow.table({"image": cells, "label": labels, "checked": [k < 9 for k in range(count)]})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write_saved_dataset(folder: Path, table: Any, files: int = 2) -> Path:
    """Write a table as `Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    names = [f"data-{k:05d}-of-{files:05d}.arrow" for k in range(files)]
    size = -(-table.num_rows // files)
    for k, name in enumerate(names):
        part = table.slice(k * size, size)
        with ipc.new_stream(str(folder / name), part.schema) as writer:
            writer.write_table(part, max_chunksize=5)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder
