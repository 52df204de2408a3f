"""What a table of a paper is made of: its settings, lines and claims, and what the authors report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
"""The seeds of the pairs that each paper is about."""
FEWER_SEEDS = SEEDS[:3]
"""The seeds of all other claims."""
FIRST_SEED = SEEDS[:1]
DEVIATIONS = ("pm_l_sd", "fm_sd")
"""Figures of which the lower one is better: deviations of accuracy over devices."""
SPENT = ("bytes", "flops")
"""Figures that tell what was spent until the highest target that both lines reached; they are compared by ratio."""
Values = Mapping[str, Any]
"""Settings that differ from those of the table's file, by key, such as partition.alpha."""
Reported = Mapping[str, Mapping[str, float]]
"""What the authors report, in per cent: line -> figure -> value."""


@dataclass(frozen=True)
class Line:
    """A method of a table, under the name that it has there."""

    name: str
    method: str = ""
    """The method's registered name, where the line has another one."""
    values: Values = field(default_factory=dict)
    cost: float = 1.0
    """The seconds of CPU that it takes, as a multiple of the setting's."""

    @property
    def runs(self) -> str:
        """The method's registered name."""
        return self.method or self.name


@dataclass(frozen=True)
class Setting:
    """A federation under which lines of a table are run."""

    name: str
    values: Values = field(default_factory=dict)
    reported: Reported = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """The lines that are run here; all of the table's if empty."""
    cost_s: float = 100.0
    """Seconds of CPU of a line whose cost is 1: an estimate, for cells that have no row yet."""


@dataclass(frozen=True)
class Claim:
    """A sign that the authors claim: one line is above another in these figures, below it in DEVIATIONS and SPENT."""

    better: str
    worse: str
    figures: tuple[str, ...]
    than: tuple[str, ...] = ()
    """The figures of the worse line, where they are others."""
    settings: tuple[str, ...] = ()
    """The settings where it is claimed; all of the table's that run both lines if empty."""
    first: bool = False
    """Whether the paper is about this pair: five seeds, which are run before those of other claims."""
    why: str = ""
    """Where the sign misses: what was found."""
    counted_with: tuple[str, str] | None = None
    """The pair whose sign says the same, because lines have the same figures: only that one counts."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The figures of both lines."""
        return tuple(zip(self.figures, self.than or self.figures, strict=True))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are run for it."""
        return SEEDS if self.first else FEWER_SEEDS


@dataclass(frozen=True)
class Trend:
    """A gap between two lines that the authors claim to grow from the first of these settings to the last."""

    better: str
    worse: str
    figures: tuple[str, ...]
    settings: tuple[str, ...]
    why: str = ""
    """Where it does not grow: what was found."""


@dataclass(frozen=True)
class Fall:
    """A figure of one line that the authors claim to fall from the first of these settings to the last."""

    line: str
    figures: tuple[str, ...]
    settings: tuple[str, ...]
    why: str = ""
    """Where it does not fall: what was found."""


@dataclass(frozen=True)
class Elsewhere:
    """A claim that no table here can look at."""

    what: str
    reported: str
    why: str
    command: str
    """The command that would run it."""


@dataclass(frozen=True)
class Headline:
    """A claim that a paper is cited for: one line of the first table of the page."""

    claim: str
    """What the authors say, with their figure."""
    table: str
    what: str
    """The sign in that table (signs.Sign.what)."""
    setting: str
    figure: str
    verdict: str
    """The verdict that the sentence was written for."""
    sentence: str
    """What a reader may take from it; the page leaves it out where rows that came later give another verdict."""


@dataclass(frozen=True)
class Table:
    """A table of a paper: one TOML file, its settings, its lines and its claims."""

    name: str
    title: str
    source: str
    """Where the authors' figures stand, and for which set-up."""
    scale: str
    """What is run here, and what the paper has."""
    figures: tuple[str, ...]
    """The figures that the page shows."""
    lines: tuple[Line, ...]
    settings: tuple[Setting, ...]
    claims: tuple[Claim, ...]
    trends: tuple[Trend, ...] = ()
    falls: tuple[Fall, ...] = ()
    found: str = ""
    """What its rows say beside the signs."""
    targets_against: str = ""
    """The line that bytes and computing to a target are compared with, or empty to leave them out."""
    folder: Path = FOLDER

    @property
    def file(self) -> Path:
        """The TOML file of the table."""
        return self.folder / f"{self.name}.toml"

    def lines_of(self, setting: Setting) -> tuple[Line, ...]:
        """Return the lines that are run under a setting."""
        return tuple(line for line in self.lines if not setting.lines or line.name in setting.lines)

    def settings_of(self, claim: Claim) -> tuple[Setting, ...]:
        """Return the settings in which a claim can be looked at."""
        both = {claim.better, claim.worse}
        found = (setting for setting in self.settings if both <= {line.name for line in self.lines_of(setting)})
        return tuple(setting for setting in found if not claim.settings or setting.name in claim.settings)

    def claims_of(self, setting: Setting, line: Line) -> list[Claim]:
        """Return the claims that a line takes part in under a setting."""
        return [c for c in self.claims if line.name in (c.better, c.worse) and setting in self.settings_of(c)]

    def seeds_of(self, setting: Setting, line: Line) -> tuple[int, ...]:
        """Return the seeds that are planned: those of its claims, or the first alone."""
        wanted = {seed for claim in self.claims_of(setting, line) for seed in claim.seeds}
        return tuple(sorted(wanted)) or FIRST_SEED


@dataclass(frozen=True)
class Paper:
    """A paper with its tables: a page of its own."""

    name: str
    """The name of its page."""
    title: str
    tables: tuple[Table, ...]
    headlines: tuple[Headline, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()


def devices(count: int, model: str) -> Values:
    """Return the values of a fleet of so many devices with one model, or one rule of models."""
    return {"federation.devices": count, "fleet": [{"count": count, "model": model}]}
