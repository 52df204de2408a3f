"""What `edge-sdk bench` writes: bench.md, bench.tex and bench.html, and the tables of a page between its two marks."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from coordinator.results.comparison.compare import setting_text
from coordinator.results.comparison.compare_files import markdown_text
from coordinator.results.document.values import DocumentSection, comparison_section, sortable
from coordinator.results.plots.drawing import Drawings
from coordinator.results.report import text_files
from coordinator.results.report.tables import latex_text, show_table
from edge_sdk.at_rest.files import unwritable
from edge_sdk.errors import MissingExtra, UsageError
from edge_sim.bench.bench import Bench, chosen_methods, chosen_tasks, open_bench, read_bench, run_bench
from edge_sim.bench.tables import (
    WORDS_OF,
    TaskVerdict,
    as_latex,
    board_table,
    method_table,
    tables,
    task_table,
    verdict_table,
    verdicts,
)
from edge_sim.bench.tasks import GROUPS, TASKS
from edge_sim.studies.compare_command import KEPT, say

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
KEY = (
    "Accuracies in per cent, mean ± deviation over the seeds: *accuracy* of the devices' own models on all classes; "
    "*minus local* the difference to the same devices trained alone, paired by seed, in points with its 95 % interval; "
    "*worst device* the lowest tenth, at least one; *own classes* on the test samples of the classes that a device "
    "holds; *shared net* of the net that all devices share, as it arrives. Bytes of a device in a round. Figures with "
    "slashes are those of the boards, in their order: seconds of computing, joules including waiting, memory, and the "
    "largest share of the board's budget."
)
ERROR = (
    "Seconds and joules follow from the profiles. With the measured profile, x86, predicted training steps were "
    "typically off by a factor of 1.5 and inference passes by 1.9; these boards are scaled from it, and are further "
    "off ([boards](../reference/boards.md)). Differences between methods on one board are affected least."
)


def write_tables(bench: Bench, page: Path | None) -> list[Path]:
    """Write the files in the benchmark's folder, and the page if there is one; return their paths.

    Raises UsageError where the page has no marks or cannot be written.
    """
    block = page_text(bench)
    files = {bench.out / "bench.md": f"# Benchmark\n\n{block}\n", bench.out / "bench.tex": _latex(bench)}
    if page is not None:
        files[page] = _between_marks(page, block)
    try:
        for path, text in files.items():
            text_files.replace_file(path, text)
    except OSError as error:
        raise unwritable(error, f"{page or bench.out}: cannot be written ({error.strerror})") from None
    return [*files, *_html(bench)]


def page_text(bench: Bench) -> str:
    """Return all tables as Markdown."""
    found = verdicts(bench)
    methods, reasons = method_table(bench)
    parts = [
        _about(bench),
        *(bench.missing[name] for name in sorted(bench.missing)),
        "## Which method is best where",
        *([markdown_text(verdict_table(found)).strip(), _alone(found)] if found else ["No runs are finished."]),
        *_unfinished(bench),
        "## The boards",
        markdown_text(board_table(bench)).strip(),
        ERROR,
        "## All methods, task by task",
        KEY,
    ]
    for table in tables(bench):
        title, _, about = table.caption.partition(": ")
        body = "\n".join(line for line in markdown_text(table).splitlines() if line.startswith("|"))
        parts += [f"### {title}", f"{about[:1].upper()}{about[1:]}.", body]
    parts += ["## What each method was run on", markdown_text(methods).strip()]
    if reasons:
        parts += ["Not run:", "\n".join(f"- {reason}" for reason in reasons)]
    return "\n\n".join(parts)


def _about(bench: Bench) -> str:
    scale = bench.scale
    command = "--smoke" if bench.scale_name == "smoke" else f"--scale {bench.scale_name}"
    versions = next((found.example.versions for _, _, found in bench.comparisons()), {})
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    others = "; ".join(f"`{name}` {setting_text(params)}" for name, params in scale.methods.items())
    return (
        f"`edge-sdk bench {command} --seeds {','.join(map(str, bench.seeds))} --boards {','.join(bench.boards)}`, "
        f"{datetime.now(timezone.utc):%Y-%m-%d}. Scale: {scale.rounds} rounds of {scale.local_steps} steps of 16 "
        "samples, SGD at 0.05 with momentum 0.9, every parameter of every method at its default"
        f"{f' but {others}' if others else ''}; "
        f"{scale.train_samples:,} training samples on {scale.devices} devices ({scale.public} of them public, without "
        f"labels) and {scale.test_samples} test samples; a task of persons has all its samples, and a device for each "
        "person. "
        f"Software: {told or 'unknown'}."
    )


def _alone(found: list[TaskVerdict]) -> str:
    if any(each.local is None or each.local.sd is None for each in found):
        return "With one seed there are no intervals, and no order is shown."
    places = [f"{each.task.name} ({WORDS_OF[each.group]})" for each in found if not each.ahead]
    return (
        f"No method's interval is above training alone on {', '.join(places)}."
        if places
        else "On every task some method's interval is above training alone."
    )


def _unfinished(bench: Bench) -> list[str]:
    """Return a line for each task and fleet with missing runs: its order is that of the others."""
    return [
        f"Not finished: {task.name}, {WORDS_OF[group]}: {', '.join(names)}."
        for task in TASKS
        for group in GROUPS
        if (names := bench.unfinished(task, group))
    ]


def _latex(bench: Bench) -> str:
    return "\n".join(latex_text(as_latex(table)) for table in tables(bench))


def _between_marks(page: Path, block: str) -> str:
    with text_files.reading(page, f"write a page with the lines {BEGIN} and {END}"):
        text = text_files.read_text(page)
    if BEGIN not in text or END not in text.partition(BEGIN)[2]:
        raise UsageError(f"{page}: lacks the lines {BEGIN} and {END}, between which the tables go")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{block}\n{END}{rest.partition(END)[2]}"


def _html(bench: Bench) -> list[Path]:
    """Write bench.html with every comparison; none where jinja2 is not installed or nothing is finished."""
    sections: list[tuple[DocumentSection, Drawings]] = []
    for place, (task, group, found) in enumerate(bench.comparisons()):
        section = comparison_section(found, f"{task.name}/{group}", "", f"part-{place}")
        own = sortable(task_table(bench, task, group, found), task.about)
        sections.append((replace(section, tables=(own, *section.tables[1:])), {}))
    if not sections:
        return []
    try:
        from coordinator.results.document.jinja2_document import write_document  # jinja2 is optional
    except ImportError:
        raise MissingExtra("jinja2", "coordinator", "writing the benchmark as HTML") from None
    path = bench.out / "bench.html"
    overview = sortable(verdict_table(verdicts(bench)), "Which method is best where")
    write_document(sections, path, overview, draws=False)
    return [path]


def command(args: argparse.Namespace) -> int:
    """Run what is missing, and write the tables of all that is finished."""
    scale = "smoke" if args.smoke else args.scale
    out = args.out or Path("runs") / f"bench-{scale}"
    tasks, methods = chosen_tasks(args.tasks), chosen_methods(args.methods)
    bench = read_bench(out) if args.show else open_bench(out, scale, args.boards, args.seeds)
    if not args.show:
        data = args.data or Path(os.environ.get("EDGE_DATA", "data"))
        try:
            run_bench(bench, tasks, methods, data, jobs=args.jobs, say=say)
        except KeyboardInterrupt:
            sys.stderr.write(f"\ninterrupted; {KEPT.format(out=out)}\n")
            raise
        if all(task.name in bench.missing for task in tasks):
            raise UsageError("bench: none of these tasks has its data; see the lines above, or use --tasks vibration")
    written = write_tables(bench, args.page)
    show_table(verdict_table(verdicts(bench)), sys.stdout)
    sys.stdout.writelines(f"written: {path}\n" for path in written)
    return 0
