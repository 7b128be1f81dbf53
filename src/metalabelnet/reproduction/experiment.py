"""What an experiment is: a table or figure, and the runs it consists of."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalabelnet.reproduction import photos
from metalabelnet.reproduction.paper_numbers import CELLS, PaperNumber, paper_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run of an experiment and its position in the table or figure.

    Attributes
    ----------
    experiment : str
        Name of the experiment.
    method : str
        Name of the method: the row of a table.
    cell : str
        The noise, such as "feature:0.6": the column of a table.
    point : str
        The value of what the experiment varies; empty if it varies nothing.
    seed : int
        Seed of the run.
    fields : mapping
        The settings of the run except those of the machine (folders, files, device, dtype).
    curves : bool
        Whether the experiment needs the metrics of every epoch.
    kind : str
        "run", or "losses" for the losses along one step of a run.
    """

    experiment: str
    method: str
    cell: str
    point: str
    seed: int
    fields: Mapping[str, Any]
    curves: bool = False
    kind: str = "run"

    @property
    def paper(self) -> PaperNumber | None:
        """The paper's number for this run, or None."""
        if self.fields["data"] == "digits" or "image_size" in self.fields:
            return None  # a smoke test
        if photos.is_photo_run(self.fields):
            return paper_number(self.experiment, self.method, self.point or self.cell)
        return None if self.point else paper_number(self.experiment, self.method, self.cell)

    @property
    def needs_noise_probs(self) -> bool:
        """Whether the noise is drawn from the authors' class probabilities, which are read from a file."""
        return str(self.fields["noise"]).startswith("feature:") and self.fields.get("noise_probs") != "probe"

    @property
    def needs_human_labels(self) -> bool:
        """Whether the run uses the human labels of CIFAR-10N."""
        return str(self.fields["noise"]).startswith("cifar10n:")

    @property
    def needs_pretrained(self) -> bool:
        """Whether the run starts from weights trained on ImageNet."""
        return self.fields.get("pretrained") is not None

    def __str__(self) -> str:
        point = f" {self.point}" if self.point else ""
        return f"{self.method} {self.cell}{point} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The runs of a table or figure.

    Attributes
    ----------
    summary : str
        One line for `reproduce --list`.
    make_fields : callable
        Returns the settings of a run from method, cell, seed and changed settings.
    methods, all_methods : tuple of str
        The methods run by default and those that can be selected.
    cells, all_cells, smoke_cells : tuple of str
        The cells run by default, those that can be selected, and those of a smoke test.
    points, all_points : tuple of str
        The values of what the experiment varies, by default and that can be selected (empty: the same); a single empty
        string if it varies nothing.
    vary : callable
        Returns the settings that a point changes.
    seeds : int
        Number of seeds run by default.
    curves, kind
        As in `RunSpec`.
    budgeted : bool
        Whether the points are GPU minutes, from which the number of epochs of each method follows.
    needs_data : str
        The data set it needs, if the package cannot download it; `all` leaves such experiments out.
    """

    summary: str
    make_fields: Callable[..., dict[str, Any]]
    methods: tuple[str, ...] = ("metalabelnet",)
    all_methods: tuple[str, ...] = ("metalabelnet",)
    cells: tuple[str, ...] = ("feature:0.6",)
    all_cells: tuple[str, ...] = CELLS
    smoke_cells: tuple[str, ...] = ("feature:0.6",)
    points: tuple[str, ...] = ("",)
    all_points: tuple[str, ...] = ()
    vary: Callable[[str], dict[str, Any]] = dataclasses.field(default=lambda _point: {})
    seeds: int = 1
    curves: bool = False
    kind: str = "run"
    budgeted: bool = False
    needs_data: str = ""

    @property
    def selectable_points(self) -> tuple[str, ...]:
        """All points that can be selected."""
        return self.all_points or self.points
