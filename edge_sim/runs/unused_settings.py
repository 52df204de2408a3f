"""Remarks in the report about settings that had no effect in a run.

They are not errors: one file may serve several runs, and the end of a run is unknown beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from coordinator.record.units import human_seconds
from coordinator.serving.server import Server
from edge_sdk.protocol.messages import TrainSpec
from edge_sim.config.scenario import ScenarioTable
from edge_sim.config.settings import Config, RunTable

USED_WITH = {"stacked": "stack", "ray_fold": "cluster"}
"""Keys of [run] that are read only if another key is given."""
OF_TRAINING = {
    "momentum": ("optimiser", ("sgd",)),
    "beta1": ("optimiser", ("adam",)),
    "beta2": ("optimiser", ("adam",)),
    "schedule_factor": ("schedule", ("step", "exponential")),
    "schedule_every_rounds": ("schedule", ("step",)),
    "schedule_rounds": ("schedule", ("cosine",)),
    "schedule_floor": ("schedule", ("step", "exponential", "cosine")),
    "decay_all": ("weight_decay", ()),
}
"""Keys of [train] that are read only with some values of another key, or with any except its default."""


def unused_settings(config: Config, ended_s: float) -> tuple[str, ...]:
    """Return one line for each setting without effect.  ended_s: virtual time at the end of the run."""
    return (*_unread(config.run), *_without_effect(config.train), *_never_came(config.scenario, ended_s))


def _unread(run: RunTable) -> Iterator[str]:
    for key, other in USED_WITH.items():
        if getattr(run, key) and not getattr(run, other):
            yield f"run.{key}: has no effect without run.{other}"


def _without_effect(train: TrainSpec) -> Iterator[str]:
    usual = TrainSpec()
    for key, (by, values) in OF_TRAINING.items():
        chosen = getattr(train, by)
        counts = chosen in values if values else chosen != getattr(usual, by)
        if getattr(train, key) != getattr(usual, key) and not counts:
            yield f"train.{key}: has no effect with train.{by} = {json.dumps(chosen)}" + (
                f"; only {' or '.join(values)} reads it" if values else ""
            )


def _never_came(scenario: ScenarioTable, ended_s: float) -> Iterator[str]:
    for key in ("broker_lost_at_s", "coordinator_lost_at_s"):
        late = [at_s for at_s in getattr(scenario, key) if at_s > ended_s]
        if late:
            yield f"scenario.{key}: {min(late):.10g} s was not reached: the run was over at {ended_s:.0f} s"


# -- A remark for a run whose devices joined late: its costs include the wait for them --------------------------------

WORTH_S, WORTH_SHARE = 60.0, 0.1
"""Minimum wait in seconds, and as a share of the run, for the remark."""


def remark(server: Server, ended_s: float) -> tuple[str, ...]:
    """Return one line, or none if the wait was short.  ended_s: virtual seconds that the run took."""
    begun_s = server.record.started_s
    if begun_s is None or begun_s < max(WORTH_S, WORTH_SHARE * ended_s):
        return ()
    *_, last = server.hellos
    told = (
        f"the first exchange began after {human_seconds(begun_s)}, when {last} had joined: joules and bytes of that "
        "wait count in round 1, its time in no round; with a lower federation.quorum a run begins without the last"
    )
    return (told,)
