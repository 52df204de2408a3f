"""Writes docs/reference/configuration.md from the classes that read the tables."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from field_tables import ranges_table  # beside this script

from coordinator.config import PublicTable
from coordinator.federation_table import FederationTable
from coordinator.results.writers.alerts import AlertsTable
from coordinator.serving.intake.canary import GuardTable
from edge_sdk.protocol.messages import TrainSpec
from edge_sdk.reductions.influence import RobustTable
from edge_sim.config.settings import FleetRow, RunTable

PAGE = Path(__file__).parent / "reference" / "configuration.md"
OF_FLEET = ("count", "model", "board", "link", "size", "feature_dim")
"""Keys of [[fleet]] that say what a device is."""

TEXT = """\
# A federation's file

One TOML file describes a federation. `edge-sdk coordinator FILE.toml` reads the first eight sections, and ignores the
others; `edge-sdk simulate`, `compare` and `sweep` read all. The command line can set every value, too:
`--set federation.rounds=20 --set method.fedal.tau=3`. An unknown key, or a value out of range, is refused with one line
that names it. `docs/gen_configuration.py` writes this page.

## [federation]

{federation}

## [method]

Parameters of the method. `edge-sdk methods` lists the methods, and [each one's page](methods/) its parameters. Keys in
`[method]` itself go to the method that runs, and must be among its parameters; those in `[method.NAME]` go only to that
method, so that `compare` and `sweep` run many methods from one file.

```toml
[federation]
method = "fedal"

[method.fedal]
tau = 3.0

[method.fedprox]
mu = 0.1
```

## [train]

How devices train between exchanges, under every method.

{train}

## [public]

The public set of a deployment. A simulation does not read the file: it takes its public set from its
data, `data.public` samples.

{public}

## [encoding]

In how many bytes numbers travel, for each kind of payload: [encodings](encodings.md).

## [robust]

How much one device can move, and how rows and logits become a mean: [hostile devices](../how-to/hostile-devices.md).

{robust}

## [alerts]

Of a coordinator: when it gives an alert, and to whom: [does it help?](../how-to/does-it-help.md).

{alerts}

## [guard]

Of a coordinator: samples on which it tries each round's result before devices get it.

{guard}

## [data] and [partition]

Of a simulation: where samples come from, and who holds which: [data](data.md).

## [[fleet]]

Of a simulation: its devices, a row for each kind. What may happen to them are more keys of the row:
[scenarios](scenarios.md).

{fleet}

## [scenario] and [faults]

Of a simulation: what goes wrong: [scenarios](scenarios.md).

## [run]

Of a simulation: how it is computed, which changes nothing of what comes of it but rounding.

{run}
"""


def page() -> str:
    """The whole text."""
    tables = {
        "federation": ranges_table(FederationTable),
        "train": ranges_table(TrainSpec),
        "public": ranges_table(PublicTable),
        "robust": ranges_table(RobustTable),
        "alerts": ranges_table(AlertsTable),
        "guard": ranges_table(GuardTable),
        "fleet": ranges_table(FleetRow, *OF_FLEET),
        "run": ranges_table(RunTable),
    }
    return TEXT.format(**{name: "\n".join(rows) for name, rows in tables.items()})


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
