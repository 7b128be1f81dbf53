"""Data sets: benchmarks by name, and readers for image folders, tables and `.npz` files.

Readers return a `DataSet` of `Rows`: images as uint8, tables as float32, a given label for each row and the true label
where it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.lazy_import import lazy_names

if TYPE_CHECKING:
    from metalabelnet.data.benchmarks.download import ProgressCallback, data_folder
    from metalabelnet.data.datasets import DATASETS, Benchmark, load
    from metalabelnet.data.files.list_data import ReadOptions
    from metalabelnet.data.rows import DataSet, Rows
    from metalabelnet.data.unlabeled import UNLABELED
    from metalabelnet.run_options import PATH_KINDS

__all__ = [
    "DATASETS",
    "PATH_KINDS",
    "UNLABELED",
    "Benchmark",
    "DataSet",
    "ProgressCallback",
    "ReadOptions",
    "Rows",
    "data_folder",
    "load",
]

_MODULES = {
    **dict.fromkeys(("DATASETS", "Benchmark", "load"), "metalabelnet.data.datasets"),
    **dict.fromkeys(("ProgressCallback", "data_folder"), "metalabelnet.data.benchmarks.download"),
    **dict.fromkeys(("DataSet", "Rows"), "metalabelnet.data.rows"),
    "PATH_KINDS": "metalabelnet.run_options",
    "ReadOptions": "metalabelnet.data.files.list_data",
    "UNLABELED": "metalabelnet.data.unlabeled",
}
# Imported on first use: listing samples needs no PyTorch, which takes seconds to import.
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
