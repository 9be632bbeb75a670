"""What a launcher is given, the command that it runs, and a launcher of somebody else's."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from experiments.cli import main
from experiments.commands import run_training
from experiments.config import Config
from experiments.objects import Job, Needs, Run, parse_needs
from experiments.records.files import write_json
from experiments.records.record import read_comparison, run_directory, run_status
from experiments.records.schema import Status
from experiments.run import loop
from experiments.run.job import train_directory
from experiments.run.loop import UNRECORDED
from experiments.run.ray import Ray
from experiments.run.registry import LAUNCHERS
from experiments.run.slurm import Slurm
from experiments.train.models import Shape, build_model
from experiments.variants import get_variant
from tests.experiments.run.conftest import PROJECT
from tests.made_up import Here, over, quick, repeated_rows, trained_here

VARIANT = "elu+1-none"


class OneByOne:
    """Runs the command of every job, one after the other."""

    given = SimpleNamespace(options=None, jobs=[])
    room = 1

    def __init__(self, **options):
        self.given.options = options

    def start(self, jobs):
        self.given.jobs.extend(jobs)
        return [over(subprocess.run(job.command, check=False).returncode) for job in jobs]


class Elsewhere(OneByOne):
    """The same as one whose runs are on other machines; they are on this one, and in this process."""

    elsewhere = True
    start = Here.start


LAUNCHERS.add("one-by-one", OneByOne, __name__)
LAUNCHERS.add("elsewhere", Elsewhere, __name__)


def run(out, text, *options, seeds=1):
    command = [
        "run",
        "convergence",
        "--preset",
        "smoke",
        "--steps",
        "4",
        "--evaluate-every",
        "4",
        "--seeds",
        str(seeds),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "LOOK_ELSEWHERE", loop.LOOK_SECONDS)
        # Figures take most of the time of so small a run.
        patch.setattr(run_training, "write_report", lambda there, study: there / "report.html")
        return main([*command, "--variants", VARIANT, "--out", str(out), "--data-file", str(text), *options])


@pytest.fixture(scope="module")
def local(tmp_path_factory, text):
    """A comparison of one run, made in this process."""
    out = tmp_path_factory.mktemp("local") / "out"
    with trained_here():
        assert run(out, text) == 0
    return out / VARIANT / "seed0"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory in which a folder is called as the package is."""
    (tmp_path / "there/experiments").mkdir(parents=True)
    (tmp_path / "there/experiments/__init__.py").write_text("raise RuntimeError('this is another package')")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.chdir(tmp_path / "there")


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
def test_a_launcher_of_ones_own_trains_a_comparison(tmp_path, text, local):
    out = tmp_path / "out"
    assert run(out, text, "--launcher", "one-by-one", "--workers", "3", "--run-timeout", "60") == 0
    assert OneByOne.given.options == {"workers": 3, "needs": Needs(cpu=1)}
    job = OneByOne.given.jobs.pop()
    assert job == Job(Run(VARIANT, 0), out / VARIANT / "seed0")
    assert repeated_rows(job.directory / "metrics.jsonl") == repeated_rows(local / "metrics.jsonl")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--launcher one-by-on", "--launcher is 'one-by-on'; did you mean 'one-by-one'? choose from 'local'"),
        ("--launcher elsewhere --device cpu --resources gpu=1", "--device is cpu"),
        ("--launcher elsewhere --device cuda --resources gpu=0", "--device is cuda"),
        ("--resources cpu=2", "leave it out with --launcher local"),
        ("--launcher ray --resources gpus=1", "--resources has 'gpus'; did you mean 'gpu'? choose from cpu, gpu, mem"),
        ("--launcher ray --resources cpu", "--resources has 'cpu'; give a positive number, as cpu=2"),
        ("--launcher slurm --resources cpu=0", "--resources has 'cpu=0'; give a positive number"),
        ("--prepare --learning-rates 0.1,0.2", "leave out --learning-rates"),
    ],
)
def test_what_no_launcher_can_do_is_refused(tmp_path, text, capsys, options, said):
    assert run(tmp_path / "out", text, *options.split()) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("launcher", "needs", "is_there", "said"),
    [
        (Ray, Needs(minutes=5), True, "minutes"),
        (Ray, Needs(), False, r"give pip install .*\[ray\]"),
        (Slurm, Needs(minutes=5), False, r"give pip install .*\[slurm\]"),
        (Slurm, Needs(), True, "--launcher slurm needs --resources minutes=M"),
        (Slurm, Needs(minutes=5, gpu=0.5), True, "gpu=0.5, and Slurm gives whole ones"),
        (Slurm, Needs(minutes=5), None, "sbatch and srun, which are not here"),
    ],
)
def test_what_a_launcher_has_not_is_refused(monkeypatch, launcher, needs, is_there, said):
    module = launcher.__module__
    monkeypatch.setattr(f"{module}.find_spec", lambda name: None if is_there is False else name)
    monkeypatch.setattr("shutil.which", lambda name: is_there)
    with pytest.raises(ValueError, match=said):
        launcher(needs=needs)


def test_what_is_not_named_is_the_default():
    assert parse_needs("gpu=0.25,memory=8", Needs(cpu=2)) == Needs(cpu=2, gpu=0.25, memory=8)


ENDED = {
    0: ("a reason", "a reason"),
    1: (-15, "its process ended with signal SIGTERM"),
    2: (3, "its process ended with exit status 3 and without a word"),
    3: (UNRECORDED, "how it ended could not be recorded; is there room on the disk, and may its directory be written?"),
    4: (OSError("no room"), "its process could not be started (OSError: no room)"),
}
"""by seed, how a run ends, and what is told of it"""


def test_runs_that_left_no_word_failed_and_the_others_go_on(tmp_path, text, monkeypatch):
    class Failing(OneByOne):
        def start(self, jobs):
            (job,) = jobs
            ended, _ = ENDED.get(job.run.seed, (None, ""))
            if isinstance(ended, OSError):
                raise ended
            return Here.start(self, jobs) if ended is None else [over(ended)]

    monkeypatch.setitem(LAUNCHERS._items, "failing", Failing)
    assert run(tmp_path, text, "--launcher", "failing", seeds=len(ENDED) + 1) == 1
    for seed, (_, told) in ENDED.items():
        status = run_status(tmp_path, VARIANT, seed)
        assert (status.state, status.reason) == ("failed", told)
    assert run_status(tmp_path, VARIANT, len(ENDED)).state == "done"


@pytest.mark.parametrize("options", [("--resources", "gpu=1"), ("--device", "cuda")])
def test_where_a_gpu_is_reserved_elsewhere_nothing_is_trained_on_a_processor(tmp_path, text, monkeypatch, options):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(tmp_path, text, "--launcher", "elsewhere", *options) == 1
    assert OneByOne.given.options["needs"].gpu == 1
    assert json.loads((tmp_path / VARIANT / "seed0/job.json").read_text())["device"] == "cuda"
    assert read_comparison(tmp_path).machine["device"] == "a GPU of another machine"
    reason = run_status(tmp_path, VARIANT, 0).reason
    assert reason.startswith("it is to be trained on a GPU, and PyTorch finds no CUDA device on ")


def test_prepared_runs_are_trained_by_their_own_commands(tmp_path, text, local, capsys):
    out = tmp_path / "out"
    assert run(out, text, "--prepare") == 0
    assert f"experiments train {out / VARIANT / 'seed0'}\n" in capsys.readouterr().out
    assert not (out / VARIANT / "seed0/metrics.jsonl").exists()
    assert train_directory(out / VARIANT / "seed0") == 0
    told = capsys.readouterr().out
    assert re.search(rf"^{re.escape(VARIANT)} seed 0: step 4/4, loss [0-9.]+ nats/token, [0-9,]+ tokens/s$", told, re.M)
    assert told.endswith(f"{VARIANT} seed 0: done\n")
    assert train_directory(out / VARIANT / "seed0") == 0
    assert run(out, text) == 0
    assert "1 of 1 runs are done already" in capsys.readouterr().out
    assert repeated_rows(out / VARIANT / "seed0/metrics.jsonl") == repeated_rows(local / "metrics.jsonl")


@pytest.mark.slow
def test_a_fine_tuned_run_is_trained_from_any_directory(tmp_path, monkeypatch):
    small = ["--preset", "smoke", "--steps", "2", "--evaluate-every", "2", "--checkpoint-every", "2", "--workers", "1"]
    small += ["--variants", "softmax-rope"]
    monkeypatch.chdir(tmp_path)
    with quick():
        assert main(["run", "mlm", *small, "--out", "mlm"]) == 0
        assert main(["run", "glue", *small, "--initial-weights", "mlm", "--prepare", "--out", "task"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train_directory(tmp_path / "task/softmax-rope/seed0") == 0


def test_parameters_on_record_are_those_of_the_models(tmp_path):
    variants = ["softmax-none", "softmax-floater", "elu+1-rope-after@decay=gate@local_conv=4"]
    words = ["run", "positions", "--preset", "smoke", "--layers", "6", "--dim", "64", "--heads", "4", "--prepare"]
    assert main([*words, "--variants", ",".join(variants), "--out", str(tmp_path)]) == 0
    record = read_comparison(tmp_path)
    for each in record.variants:
        config = get_variant(each.name).config(Config(**record.config))
        model = build_model(get_variant(each.name), config, 0, Shape(256, config.context))
        assert each.parameters == sum(weight.numel() for weight in model.parameters()), each.name


@pytest.fixture
def begun(local, tmp_path):
    """The directory of a run that has all it needs, and has not begun."""
    directory = run_directory(tmp_path / "elsewhere", VARIANT, 0)
    directory.mkdir(parents=True)
    for name in ("config.json", "job.json"):
        (directory / name).write_bytes((local / name).read_bytes())
    return directory


def test_another_machine_must_have_the_same_code(begun):
    needed = json.loads((begun / "job.json").read_text()) | {"code_sha256": "0" * 64}
    (begun / "job.json").write_text(json.dumps(needed))
    assert train_directory(begun) == 0  # what the same machine has is the comparison's
    (begun / "status.json").unlink()
    (begun / "job.json").write_text(json.dumps(needed | {"host": "another"}))
    assert train_directory(begun) == 1
    reason = run_status(begun.parents[1], VARIANT, 0).reason
    assert "has other code of linear-rope than another, where its command was given" in reason


def test_a_run_that_another_process_trains_is_left_to_it(begun, local, text, monkeypatch, capsys):
    root, running = begun.parents[1], {"state": "running", "reason": None}
    (root / "comparison.json").write_bytes((local.parents[1] / "comparison.json").read_bytes())
    monkeypatch.setattr("experiments.run.job.LEASE_SECONDS", 0)
    (begun / ".lease").write_text("filelock/2\npid=7\nhost=there\nmode=lease\ntoken=ab\nduration=60.0\n")
    write_json(begun / "status.json", running)
    assert train_directory(begun) == 1
    assert "seed 0: running (another process has been training it" in capsys.readouterr().out
    with trained_here():
        assert run(root, text) == 1
    assert f"running: {VARIANT} seed 0: another process trains it" in capsys.readouterr().out
    assert run_status(root, VARIANT, 0) == Status(state="running")


def test_a_run_imports_the_modules_that_its_comparison_had(begun, tmp_path, monkeypatch):
    (tmp_path / "a_plugin_of_mine.py").write_text("from pathlib import Path; Path(__file__).with_name('was').touch()")
    monkeypatch.syspath_prepend(tmp_path)
    needed = json.loads((begun / "job.json").read_text())
    (begun / "job.json").write_text(json.dumps(needed | {"plugins": ["a_plugin_of_mine"]}))
    assert train_directory(begun) == 0
    assert (tmp_path / "was").exists()
    assert sys.modules.pop("a_plugin_of_mine")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: run.rename(run.with_name("seed1")), "holds the config.json of .* seed 0; give the directory of"),
        (lambda run: (run / "config.json").unlink(), "config.json cannot be read .*give the directory of a run"),
        (lambda run: (run / "job.json").unlink(), "job.json cannot be read .*run its comparison again"),
        (lambda run: (run / "job.json").write_text("{}"), "job.json is wrong: .*run its comparison again"),
    ],
)
def test_what_is_no_runs_directory_is_refused(begun, change, told):
    moved = change(begun)
    with pytest.raises(ValueError, match=told):
        train_directory(begun if not isinstance(moved, type(begun)) else moved)
