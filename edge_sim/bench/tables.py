"""The tables of the benchmark: one for each task and group of nets, one over all, one of methods, one of boards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coordinator.record.units import human_bytes
from coordinator.results.comparison.compare import Comparison, MethodRuns
from coordinator.results.comparison.compare_table import difference_text, spread_text
from coordinator.results.comparison.paper_table import escaped
from coordinator.results.figures.intervals import Spread
from coordinator.results.report.tables import UNKNOWN, Column, Table
from edge_sdk.boards.profiles import load_board, load_link
from edge_sdk.methods.contract.registry import load_method, method_fault, method_names, needed_parameters
from edge_sdk.protocol.frames.schema import tag_of
from edge_sim.bench.bench import LOCAL, Bench
from edge_sim.bench.tasks import TASKS, NetGroup, Task
from edge_sim.fleet.feasible import SYSTEM_BYTES

WORDS_OF: Mapping[NetGroup, str] = {"mixed": "nets by board", "one-net": "one net for all"}
ROUND_S = 60.0
"""A board's budget is what it has in a round of a minute: seconds, joules when busy, bytes that its link carries up."""
_MIB = 2**20


@dataclass(frozen=True)
class BoardCost:
    """What a device on one board spends in a round under one method, mean over its devices and the seeds."""

    s: float
    j: float
    memory_bytes: int
    budget_share: float
    """The largest share of the board's budget: of memory, seconds, joules or bytes."""


def board_costs(bench: Bench, where: str, line: MethodRuns) -> dict[str, BoardCost]:
    """Return the costs of a method by board.  where: TASK/GROUP."""
    found = {}
    for name in bench.boards:
        board = load_board(name)
        there = [
            (device, max(1, trial.result.rounds_done))
            for trial in line.trials
            for device in trial.result.devices
            if device.board == board.name
        ]
        memory = bench.memory.get(f"{where}/{line.method}", {}).get(name, 0)
        if not there or not memory:
            continue
        s, j, up = (
            sum(getattr(device, key) / rounds for device, rounds in there) / len(there)
            for key in ("busy_s", "energy_j", "bytes_up")
        )
        shares = (
            memory / max(1, board.ram_bytes - SYSTEM_BYTES),
            s / ROUND_S,
            j / (ROUND_S * board.busy_w),
            up / (ROUND_S * load_link(board.link).up_bytes_per_s),
        )
        found[name] = BoardCost(s, j, memory, max(shares))
    return found


def task_table(bench: Bench, task: Task, group: NetGroup, comparison: Comparison) -> Table:
    """Return the table of a task and a group of nets: a row for each method, the most accurate first."""
    lines = sorted(comparison.lines, key=lambda line: -_mean(line.accuracy("mean")))
    own = ("accuracy", "minus local", "worst device", "own classes", "shared net", "up", "down")
    boards = ("s a round", "J a round", "MiB", "of its budget")
    return Table(
        columns=(
            Column("method"),
            *(Column(name, right=True) for name in (*own, *boards)),
            Column("leaves the device"),
        ),
        rows=tuple(_row(bench, f"{task.name}/{group}", comparison, line) for line in lines),
        caption=(
            f"{task.name}, {WORDS_OF[group]}: {task.about}; {task.devices(bench.scale)} devices with "
            f"{_nets(task, group)}"
        ),
    )


def _nets(task: Task, group: NetGroup) -> str:
    return task.nets[0] if group == "one-net" else ", ".join(task.nets)


def _row(bench: Bench, where: str, comparison: Comparison, line: MethodRuns) -> tuple[str, ...]:
    costs = [*board_costs(bench, where, line).values()]
    difference = None if line.method == LOCAL else comparison.difference(line, "mean")
    way = [line.cost(f"{name}_per_device_round") for name in ("up", "down")]
    return (
        line.method,
        spread_text(line.accuracy("mean")),
        difference_text(difference),
        spread_text(line.accuracy("worst")),
        spread_text(line.accuracy("local_accuracy")),
        spread_text(line.accuracy("global_mean")),
        *(UNKNOWN if each is None else human_bytes(each.mean) for each in way),
        _by_board(f"{cost.s:.2g}" for cost in costs),
        _by_board(f"{cost.j:.2g}" for cost in costs),
        _by_board(f"{cost.memory_bytes / _MIB:.0f}" for cost in costs),
        _by_board(f"{100 * cost.budget_share:.0f}%" for cost in costs),
        leaves(line.method),
    )


def _by_board(texts: Iterator[str]) -> str:
    return " / ".join(texts) or UNKNOWN


def _mean(spread: Spread | None) -> float:
    return spread.mean if spread else 0.0


def leaves(name: str) -> str:
    """Return the kinds of knowledge that a method's uploads hold."""
    rows = load_method(name)().every_exchange
    return ", ".join(sorted({tag_of(slot.kind) for row in rows for slot in row.up.values()})) or "nothing"


@dataclass(frozen=True)
class TaskVerdict:
    """What a task and a group of nets say of methods and training alone."""

    task: Task
    group: NetGroup
    local: Spread | None
    best: MethodRuns
    shared: tuple[str, Spread] | None
    """The method whose shared net is the most accurate, if any has one."""
    gain: Spread | None
    """The best method's accuracy minus training alone."""
    level: tuple[str, ...]
    """Other methods whose paired interval to the best one includes 0."""
    ahead: tuple[str, ...]
    """Methods whose paired interval to training alone is above 0."""
    behind: tuple[str, ...]


def verdicts(bench: Bench) -> list[TaskVerdict]:
    """Return one verdict for each task and group with at least one method beside training alone."""
    return [_verdict(task, group, found) for task, group, found in bench.comparisons() if len(found.lines) > 1]


def _verdict(task: Task, group: NetGroup, comparison: Comparison) -> TaskVerdict:
    best = max(comparison.lines, key=lambda line: _mean(line.accuracy("mean")))
    others = [line for line in comparison.lines if line.method != LOCAL]
    to_best = Comparison(comparison.lines, baseline=best.method)
    shared = {line.method: found for line in others if (found := line.accuracy("global_mean"))}
    signs = {line.method: _sign(comparison.difference(line, "mean")) for line in others}
    return TaskVerdict(
        task,
        group,
        comparison.lines[0].accuracy("mean"),
        best,
        max(shared.items(), key=lambda each: each[1].mean) if shared else None,
        None if best.method == LOCAL else comparison.difference(best, "mean"),
        tuple(each.method for each in comparison.lines if each != best and _level(to_best.difference(each, "mean"))),
        tuple(name for name, sign in signs.items() if sign > 0),
        tuple(name for name, sign in signs.items() if sign < 0),
    )


def _sign(spread: Spread | None) -> int:
    """Return 1 or -1 where the interval of a difference is above or below 0, else 0."""
    if spread is None or spread.interval is None:
        return 0
    low, high = spread.interval
    return int(low > 0) - int(high < 0)


def _level(spread: Spread | None) -> bool:
    return spread is not None and spread.interval is not None and not _sign(spread)


def verdict_table(found: list[TaskVerdict]) -> Table:
    """Return the table of verdicts: which method is best where, and what training alone reaches."""
    columns = (
        *(Column("task"), Column("nets"), Column("alone", right=True), Column("best"), Column("accuracy", right=True)),
        *(Column("minus local", right=True), Column("level with it"), Column("ahead of training alone")),
        *(Column("behind it"), Column("best shared net")),
    )
    rows = (
        (
            *(each.task.name, WORDS_OF[each.group], spread_text(each.local)),
            *(each.best.method, spread_text(each.best.accuracy("mean")), difference_text(each.gain)),
            *(", ".join(names) or UNKNOWN for names in (each.level, each.ahead, each.behind)),
            f"{each.shared[0]} {spread_text(each.shared[1])}" if each.shared else UNKNOWN,
        )
        for each in found
    )
    return Table(columns=columns, rows=tuple(rows))


def method_table(bench: Bench) -> tuple[Table, tuple[str, ...]]:
    """Return a table of all methods and the tasks that each was run on, and the reasons why some were not."""
    ran = {(task.name, line.method) for task, _, found in bench.comparisons() for line in found.lines}
    names = [name for name in method_names() if not method_fault(name) and not needed_parameters(load_method(name))]
    reasons: dict[str, list[str]] = {}
    for key, why in bench.misfits.items():
        task, _, name = key.split("/")
        reasons.setdefault(f"`{name}`: {why.partition('; ')[0]}", []).append(task)
    rows = tuple(
        (name, *("yes" if (task.name, name) in ran else UNKNOWN for task in TASKS), load_method(name)().discloses)
        for name in names
    )
    heads = (f"{task.name}: {task.modality}" for task in TASKS)
    table = Table(columns=(Column("method"), *map(Column, heads), Column("gives away")), rows=rows)
    return table, tuple(f"{', '.join(tasks)}: {why}" for why, tasks in reasons.items())


def board_table(bench: Bench) -> Table:
    """Return the budget of each board and where the figures of its profile are from."""
    rows = []
    for board in map(load_board, bench.boards):
        link = load_link(board.link)
        rows.append(
            (
                board.title,
                f"{(board.ram_bytes - SYSTEM_BYTES) / _MIB:,.0f} MiB ({board.verified['memory']})",
                f"{ROUND_S:.0f} s",
                f"{board.train_flops_per_s / 1e9:g} GFLOP/s ({board.verified['speed']})",
                f"{ROUND_S * board.busy_w:.0f} J ({board.verified['power']})",
                f"{human_bytes(ROUND_S * link.up_bytes_per_s)} ({link.name}, {link.verified['rate']})",
            )
        )
    heads = ("board", "memory", "seconds", "speed in training", "joules", "bytes up")
    return Table(columns=tuple(map(Column, heads)), rows=tuple(rows))


def as_latex(table: Table) -> Table:
    """Return the table with cells, headings and caption as LaTeX."""

    def quoted(text: str) -> str:
        return escaped(text).replace("\N{PLUS-MINUS SIGN}", r"$\pm$")

    return Table(
        columns=tuple(Column(quoted(column.name), column.right) for column in table.columns),
        rows=tuple(tuple(map(quoted, row)) for row in table.rows),
        caption=quoted(table.caption),
        notes=tuple(map(quoted, table.notes)),
    )


def tables(bench: Bench) -> list[Table]:
    """Return the table of each task and group with finished runs."""
    return [task_table(bench, task, group, found) for task, group, found in bench.comparisons()]
