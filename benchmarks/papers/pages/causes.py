"""Guesses at why a sign misses, each with a run or a test that could refute it, and its result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """Two lines of a setting that a guess is held against."""

    table: str
    setting: str
    better: str
    worse: str
    figure: str


@dataclass(frozen=True)
class Cause:
    """One guess."""

    seen: str
    guess: str
    test: str
    """The command of the run, or the test."""
    result: str
    pairs: tuple[Pair, ...] = ()
    """The differences that the result rests on."""


VIBRATION, ALL, PERSONAL = "other-vibration", "all", "personal"
BEHIND = "FedMD-LF behind FedMD on the vibration signal"
ONE_RUN = "`python -m benchmarks.papers --table {} --setting {} --method {}`"
CAUSES: tuple[Cause, ...] = (
    Cause(
        BEHIND,
        "its less-forgetting terms hold devices back",
        ONE_RUN.format(VIBRATION, ALL, "fedmd_lf-forgets"),
        "not refuted: without them it is ahead by 2.9 points, and behind FedMD by .2, within the spread of the seeds",
        (
            Pair(VIBRATION, ALL, "fedmd_lf-forgets", "fedmd_lf", PERSONAL),
            Pair(VIBRATION, ALL, "fedmd_lf-forgets", "fedmd", PERSONAL),
        ),
    ),
    Cause(
        BEHIND,
        "it exchanges after ten steps, FedMD after each",
        ONE_RUN.format(VIBRATION, ALL, "fedmd_lf-tau-1"),
        "refuted by the run above: without those terms, ten steps are not seen behind FedMD. With one step the terms "
        "have no effect, and it is FedMD",
        (
            Pair(VIBRATION, ALL, "fedmd_lf-tau-1", "fedmd_lf", PERSONAL),
            Pair(VIBRATION, ALL, "fedmd_lf-tau-1", "fedmd", PERSONAL),
        ),
    ),
    Cause(
        BEHIND,
        "the optimiser: the paper has Adam, these lines SGD",
        ONE_RUN.format(VIBRATION, ALL, "fedmd_lf-adam"),
        "not refuted: with Adam both are level",
        (Pair(VIBRATION, ALL, "fedmd_lf-adam", "fedmd-adam", PERSONAL),),
    ),
    Cause(
        "FedAL level with FedMD and FedMD-LF",
        "its adversarial term acts only where devices' predictions differ much, so the gain grows with the skew",
        ONE_RUN.format("other-digits", "alpha-5", "fedal"),
        "not refuted: on digits it gains at alpha 0.1, and is level at 1 and 5",
        tuple(
            Pair("other-digits", setting, "fedal", "fedmd_lf", PERSONAL)
            for setting in ("alpha-0.1", "alpha-1", "alpha-5")
        ),
    ),
    Cause(
        "FedProto not below training alone in FedNH's table",
        "its weight of 0.1 is so small that it is training alone",
        ONE_RUN.format("fednh-comparators", "beta-0.3", "fedproto-strong"),
        "not decided: in the one seed that was run it is above training alone with ten times the weight, too, but both "
        "differences are smaller than those between processors",
        (
            Pair("fednh-comparators", "beta-0.3", "local", "fedproto", "pm_l"),
            Pair("fednh-comparators", "beta-0.3", "local", "fedproto-strong", "pm_l"),
        ),
    ),
    Cause(
        "FedSSA's case C, with own rows, behind its case B, without",
        "own rows count only in the first two rounds: if they count for longer, where more take part, they stabilise",
        ONE_RUN.format("fedssa-table2", "participants-30", "fedssa-t-50"),
        "not decided: in the one seed that was run none of three lengths, and no larger mu0, ends above case B",
        tuple(
            Pair("fedssa-table2", "participants-30", line, "fedssa-case-b", "local_accuracy")
            for line in ("fedssa", "fedssa-t-10", "fedssa-t-50", "fedssa-t-50-mu-0.9")
        ),
    ),
    Cause(
        "FedNH ahead of FedAvg in GM by 4.7 points, in rows from before 2026-11-26",
        "the gain came from the ReLU that the head took out of the net, not from the head",
        ONE_RUN.format("fednh-comparators", "beta-0.3", "fednh"),
        "not decided at beta 0.3, where the interval holds the old gain and 0; refuted at beta 1, where the old rows "
        "had 5.8 points and most of the gain stays",
        tuple(Pair("fednh-comparators", beta, "fednh", "fedavg", "gm") for beta in ("beta-0.3", "beta-1")),
    ),
    Cause(
        "FedAL's discriminator differs from plain autograd under Adam by up to 7e-3 (SGD: 1.6e-7)",
        "Adam at vanishing gradients, where its epsilon decides",
        "`tests/methods/test_discriminator_precision.py`",
        "refuted, and the code is right: in double precision it is torch's Adam to 13 digits. In single precision a "
        "sample's input to a ReLU may round to the other side of 0. Adam then takes a step of its whole rate, SGD one "
        "of the rate times that sample's share. This happens as often with an epsilon of 1e-4, and never with a smooth "
        "activation. The entries of the adversarial gradient that differ by up to 9.5e-2 were not examined",
    ),
)
