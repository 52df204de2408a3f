"""The model served to an app: when a newer one replaces it, and how to go back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from edge_sdk.data import LocalData
from edge_sdk.device.exchange import OngoingExchange
from edge_sdk.device.training.app_model import ModelOrigin
from edge_sdk.device.training.evaluation import class_figures
from edge_sdk.device.training.learner import WorkSlices
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import StoreError, UsageError
from edge_sdk.models.base import Served, serving_copy
from edge_sdk.policy.policy import Objection
from edge_sdk.reductions.sign_test import LEAST_SAMPLES, Right, is_worse
from edge_sdk.serving.drift import DriftWatch
from edge_sdk.serving.guard import compared_on, held_out_of, missing_classes, right_on
from edge_sdk.serving.versions import UNKNOWN, Version, Versions

REFUSED_IN_A_ROW = 3
"""After this many refused models in a row, the device pauses training."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
"""The first and the longest pause; each pause is twice as long as the one before, until a model is served."""
WORSE = Objection(
    "worse",
    f"{REFUSED_IN_A_ROW} models in a row were worse than the served one; it tries again later",
)
MAX_DROP = 0.02
"""The default: a model may be worse than the served one by two percentage points."""


def check_max_drop(value: float | None) -> None:
    """Raise UsageError unless this is a fraction, or None."""
    if value is not None and (isinstance(value, bool) or not (isinstance(value, Real) and 0 <= value <= 1)):
        raise UsageError(f"max_drop {value!r}: expected a fraction from 0 to 1, as 0.02 for two points, or None")


@dataclass(frozen=True, eq=False)
class JudgedModel:
    """The model after a round, with the guard's verdict."""

    model: Served
    rounds_done: int
    rights: Mapping[str, Right]
    """Its right answers by the name of the held-out part, or empty without one."""
    fault: str = ""
    """Why it is not served, or empty if it may be."""


class Deployment:
    """The served model of a device, its guard, and the models served before.

    The training thread calls `begin`, `judge` and `settle`.  Any thread may call `served`, `rollback` and `resume`.
    """

    def __init__(
        self,
        bench: Workbench,
        folder: Path | None,
        max_drop: float | None,
        notify: Callable[[str], None],
        *,
        notify_classes: Callable[[str], None] | None = None,
        origin: ModelOrigin = UNKNOWN,
        alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Restore the served models, if there are any.

        folder: for the last served models, or None for memory.
        max_drop: None serves every model unmeasured.
        notify_classes: receives lines that reveal how many classes have samples, by default `notify`.
        origin: the app's model; models learnt from another one are dropped.
        alone: whether the device's state, which records the weights that these models began with, is missing.
        clock: returns the time in seconds.
        """
        check_max_drop(max_drop)
        self._bench, self._max_drop, self._notify = bench, max_drop, notify
        self._notify_classes, self._told_of_classes = notify_classes or notify, False
        self._data, self._held_out = bench.data, held_out_of(bench) if max_drop is not None else ()
        self._drift = DriftWatch(bench, folder, notify, notify_classes or notify)
        self._versions = Versions(folder, notify, origin, alone=alone)
        self._current = CurrentCopy(self._restored)
        self._changing = threading.Lock()
        self._begun = False
        self._marks: dict[str, Right] = {}
        """By part: right answers of the best model served since the start, or the last rollback or resume."""
        self._joins = False
        """Whether the model is unchanged since the device joined."""
        self._joining_of: LocalData | None = None
        """The data on which this process last measured the model that joined."""
        self._candidate: JudgedModel | None = None
        self._catching_up = False
        """Whether the model restarted below the served one, or trained alone in the control group, so that being worse
        does not pause training."""
        self._clock, self._refused = clock, 0
        self._pause_s, self._pause_ends_s = 0.0, -math.inf

    @property
    def max_drop(self) -> float | None:
        """How much worse than the served one a model may be, or None to measure none."""
        return self._max_drop

    @property
    def fault(self) -> str:
        """Why models that were served before are forgotten, in one line, or empty if they are kept."""
        return self._versions.fault

    @property
    def joining(self) -> Mapping[str, float]:
        """The figures of the model before it joined, by the names of the metrics, or empty if not measured."""
        return self._versions.index.joining or {}

    @property
    def objection(self) -> Objection | None:
        """Why the device should pause after several refused models, or None."""
        if self._refused < REFUSED_IN_A_ROW:
            return None
        if self._clock() < self._pause_ends_s:
            return WORSE
        with self._changing:
            self._marks, self._refused = {}, 0
        return None

    def served(self) -> Served:
        """Return the model to predict with."""
        return self._current.now()

    def begin(self, *, fresh: bool) -> None:
        """Serve the model from before the restart, or else the current one.

        fresh: the device has no state yet.  Models served with an earlier state stay served, which is reported.
        """
        if fresh:
            self._start_over()
        self._current.renew()
        if not self._versions.index.versions:
            self._versions.add(0, self._current.now().state_bytes())
            if not fresh:
                self._versions.joined_with({})  # it has learned already: too late to measure
        if self._max_drop is not None and not self._held_out and not self._begun:
            few = f"fewer than {LEAST_SAMPLES} held-out samples"
            self._notify(
                f"{few} so far: until the SampleStore has gathered more, every new model is served, unmeasured"
                if self._bench.capacity
                else f"{few}: every new model is served, unmeasured; give LocalData a validation part"
            )
        self._begun, self._joins = True, fresh
        self._tell_of_classes()

    def _tell_of_classes(self) -> None:
        """Report once that the held-out samples lack some classes."""
        if self._told_of_classes or not self._held_out:
            return
        missing = missing_classes(compared_on(self._held_out), classes := self._bench.model.spec.classes)
        if missing:
            self._told_of_classes = True
            self._notify_classes(
                f"the guard compares models on held-out samples of {classes - missing} of the {classes} classes: on "
                "the others predict() may become worse unnoticed; give LocalData or SampleStore a test part of all "
                "classes, or the public set its labels"
            )

    def _start_over(self) -> None:
        """Keep serving the model of an earlier state, if it has learnt anything, and measure the model that joins."""
        index, folder = self._versions.index, self._versions.folder
        copy = serving_copy(self._bench.predictor)
        served = next((each for each in reversed(index.versions) if self._loads(copy, each)), None)
        if served is None or not (index.held or any(each.rounds_done for each in index.versions)):
            self._versions.forget()
            return
        self._versions.measure_joining_again()
        self._catching_up = True
        until = "agent.resume()" if index.held else "a new one is served"
        forget = "" if folder is None else f"; to begin without it, stop the device and delete {folder}"
        self._notify(
            "there is no state of this device: it joins with the app's model; predict() keeps the model served before, "
            f"after round {served.rounds_done}, until {until}{forget}"
        )

    def measure_joining(self) -> Generator[None, None, None]:
        """Measure the model that joined, before training changes it, and again when the held-out samples change.

        For the latter, a copy of the app's own model is kept.  Pauses after each batch.
        """
        self._follow_data()
        known, joins, self._joins = self._versions.index.joining, self._joins, False
        measured = known is not None and not (known and self._bench.capacity and self._joining_of is not self._data)
        if measured or not self._begun or not self._held_out:
            return
        model = self._bench if joins else self._own_model()
        if model is None:
            return
        found = {}
        for part in self._held_out:
            if part.metric:
                right = yield from right_on(model, part)
                found[part.metric] = float(right.mean())
                metric = "test" if part.name == "test" else part.metric
                found |= class_figures(self._bench, metric, right, part.y)
        self._versions.joined_with(found)
        self._joining_of = self._data

    def _own_model(self) -> Served | None:
        """Return the model as the app brought it, if a copy is kept."""
        first = next((each for each in self._versions.index.versions if not each.rounds_done), None)
        copy = serving_copy(self._bench.predictor)
        return copy if first is not None and self._loads(copy, first) else None

    def judge(self, rounds_done: int) -> Generator[None, None, str]:
        """Compare the model after a round with the served one; returns why it will not be served, or "".

        Pauses after each batch.
        """
        self._candidate = None
        if not self._begun:
            return ""
        self._follow_data()
        rights, faults, marks = dict[str, Right](), list[str](), self._marks
        for part in compared_on(self._held_out):
            if part.name not in marks:
                marks[part.name] = yield from right_on(self.served(), part)
            mark, right = marks[part.name], (yield from right_on(self._bench, part))
            rights[part.name] = right
            if self._max_drop is not None and is_worse(mark, right, self._max_drop):
                found = f"accuracy {right.mean():.1%} on {part.words}"
                faults.append(f"{found}, that of the served model is {mark.mean():.1%}")
        fault = "; ".join(faults)
        self._candidate = JudgedModel(serving_copy(self._bench.predictor), rounds_done, rights, fault)
        return fault

    def _follow_data(self) -> None:
        """Switch to the current held-out samples, if the device's data have changed."""
        if self._max_drop is None or self._data is self._bench.data:
            return
        self._data, self._held_out, self._marks = self._bench.data, held_out_of(self._bench), {}
        self._tell_of_classes()

    def examined(self, work: OngoingExchange, slices: WorkSlices) -> WorkSlices:
        """Implement Examiner: measure the model before it joins, and judge the one that each round leaves."""
        self._candidate = None
        yield from self.measure_joining()
        result = yield from slices
        work.joining = self.joining
        if work.learner.membership.is_last(work.assign.exchange):
            work.measured.instruments.update(self._drift.figures())
        self._catching_up |= work.assign.alone
        if work.learner.membership.completes_personal(work.assign) and work.learner.learns:
            work.not_served = yield from self.judge(work.assign.round + (not work.assign.closing))
        return result

    def settle(self, *, withheld: bool = False) -> None:
        """Serve the model that was judged last, unless it is worse, or the owner holds an older one.

        withheld: whether its round was undone, so that it is forgotten.
        """
        with self._changing:
            found, self._candidate = self._candidate, None
            if found is None or withheld:
                return
            if found.fault:
                self._refuse(found)
                return
            self._refused, self._pause_s, self._catching_up = 0, 0.0, False
            if self._versions.index.held:
                return
            self._current.put(found.model)
            keeps_own = self._max_drop is not None and bool(self._bench.capacity)
            self._versions.add(found.rounds_done, found.model.state_bytes(), keeps_own=keeps_own)
            for name, right in found.rights.items():
                if name not in self._marks or right.mean() >= self._marks[name].mean():
                    self._marks[name] = right

    def _refuse(self, found: JudgedModel) -> None:
        self._refused += not self._catching_up
        line = f"predict() keeps the current model; the one from round {found.rounds_done} is worse: {found.fault}"
        if self._refused == REFUSED_IN_A_ROW:
            self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, LONGEST_PAUSE_S)
            self._pause_ends_s = self._clock() + self._pause_s
            line += f"; {self._refused} in a row: training pauses for {self._pause_s:.0f} s, or until agent.resume()"
        self._notify(line)

    def rollback(self, steps: int) -> int:
        """Serve the model that was served `steps` models ago until `resume`, and return its number of rounds.

        The models served since are deleted, which is reported.  Raises UsageError if the older model is not kept,
        StoreError if it cannot be read.
        """
        with self._changing:
            version = self._versions.back(steps)
            copy = serving_copy(self.served())
            copy.load_state(self._versions.state(version))
            self._current.put(copy)
            self._versions.return_to(version)
            self._marks, self._refused = {}, 0
        gone = "the newer one is deleted" if steps == 1 else f"the {steps} newer ones are deleted"
        self._notify(f"predict() uses the model after round {version.rounds_done} until agent.resume(); {gone}")
        return version.rounds_done

    def resume(self) -> None:
        """Serve newer models again, compared with the served one."""
        with self._changing:
            self._versions.release()
            self._marks, self._refused, self._pause_s = {}, 0, 0.0

    def _restored(self) -> Served:
        """Return a copy of the model served last, or else of the current one."""
        copy = serving_copy(self._bench.predictor)
        found = any(self._loads(copy, version) for version in reversed(self._versions.index.versions))
        return copy if found else serving_copy(self._bench.predictor)

    def _loads(self, copy: Served, version: Version) -> bool:
        """Restore a version into a copy; returns whether that worked."""
        try:
            copy.load_state(self._versions.state(version))
        except StoreError as error:
            self._notify(f"a model that was served before is lost: {error}")
            return False
        return True


# -- The copy of a model that predict() uses, replaced as a whole -----------------------------------------------------


class CurrentCopy:
    """Holds a copy of a model for any thread, while the model itself trains in another.

    Callers never wait for training: replacing the copy is one assignment, and a running call keeps its old copy.
    """

    def __init__(self, make: Callable[[], Served]) -> None:
        """Defer `make` to the first use, because a device that never predicts needs no second model in memory."""
        self._make = make
        self._now: Served | None = None
        self._first = threading.Lock()

    def now(self) -> Served:
        """Return the copy; the first call makes it, which must come before training or from the thread that trains."""
        found = self._now
        if found is not None:
            return found
        with self._first:
            if self._now is None:
                self._now = self._make()
            return self._now

    def put(self, served: Served) -> None:
        """Let later calls use another copy."""
        self._now = served

    def renew(self) -> None:
        """Make the copy again, before training begins."""
        with self._first:
            self._now = self._make()
