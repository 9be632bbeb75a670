"""The run command for a study that trains nothing: its measurements, one after the other, and its report."""

from dataclasses import asdict
from pathlib import Path

import msgspec

from experiments.commands.describe import note_plugins
from experiments.commands.plan import Plan
from experiments.console import command_line, make_console, many
from experiments.errors import EXIT_FAILED
from experiments.records import store
from experiments.records.lock import check_free, only_one_run
from experiments.records.record import read_comparison, write_record
from experiments.records.schema import Comparison
from experiments.report.report import write_report
from experiments.study import resolve
from experiments.train.models import resolve_device


def run_measurements(plan: Plan) -> int:
    """Measure what is missing and write the report. Returns the exit status; raises as ``run_training``."""
    study, options, root, console = plan.study, plan.options, plan.root, make_console()
    device = resolve_device(options.device)
    missing_of, notes_of = resolve(study.missing), resolve(study.notes)
    config = resolve(study.settings)(options.preset, device.type)
    comparison = store.new_comparison(root, options.study, options.preset, command_line(options.words), device)
    # As JSON has it: a tuple is a list.
    comparison.config = msgspec.json.decode(msgspec.json.encode(asdict(config)))
    if (root / "comparison.json").is_file():
        comparison = _continued(root, comparison, bool(missing_of(root, config)))
    continued = [note for note in comparison.notes if note.startswith(store.CONTINUED)]
    comparison.notes = continued + notes_of(root, config)
    missing = missing_of(root, config)
    console.print(f"{many(len(missing), 'measurement')} to make on {comparison.machine['device']}")
    for note in comparison.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if options.dry_run:
        check_free(root)
        for measurement in missing:
            console.print(f"  {measurement}", soft_wrap=True)
        console.print("Nothing was measured or written.")
        return 0

    store.make_directory(root)
    with only_one_run(root, console), store.failing_after_it_began(root):
        note_plugins(comparison, options)
        write_record(root / "comparison.json", comparison)
        failures = resolve(study.measure)(root, comparison, None)
        # Of what failed before, some may have succeeded now.
        comparison.notes = continued + notes_of(root, config)
        write_record(root / "comparison.json", comparison)
        report = write_report(root, study)
    for failure in failures:
        console.print(f"failed: {failure}", soft_wrap=True)
    console.print(f"report: {report}", soft_wrap=True)
    return EXIT_FAILED if failures else 0


def _continued(root: Path, comparison: Comparison, unfinished: bool) -> Comparison:
    """The comparison that is in ``root``, to go on with. Raises ValueError if it measured something else."""
    there = read_comparison(root)
    store.check_same_study(root, there, comparison)
    known, now = (each.config | {"the device": each.machine.get("device")} for each in (there, comparison))
    store.refuse_if_differing(root, known, now)
    store.add_changes(there, comparison, all_done=not unfinished)
    return there
