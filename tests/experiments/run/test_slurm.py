"""Runs as Slurm's jobs: with submitit's own local executor, and with made-up commands in the place of Slurm's."""

import io
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from rich.console import Console

from experiments.data.registry import load_corpus
from experiments.objects import Needs, Run
from experiments.presets import get_preset
from experiments.records.lease import Lease
from experiments.records.record import run_status
from experiments.run.display import Display
from experiments.run.local import Local
from experiments.run.loop import Ended, Started, follow
from experiments.run.plan import Training, prepare_runs, write_status
from experiments.run.runs import train_runs
from experiments.run.signals import Stopped
from experiments.run.slurm import Slurm
from tests.made_up import repeated_rows

RUNS = [Run("softmax-none", 0), Run("elu+1-none", 0)]
RESOURCES = Needs(cpu=1, minutes=30)

SBATCH = '''#!{python} -B
"""Starts the tasks of an array, or the only one, as Slurm would: each with its variables, in a script of its own."""
import os, re, subprocess, sys
from pathlib import Path
script, place = Path(sys.argv[1]), Path(__file__).parent
options = dict(re.findall("^#SBATCH --([a-z-]+)=(.*)$", script.read_text(), re.M))
job = str(1000 + len(list(place.glob("job-*"))))
(place / f"job-{{job}}").write_text(repr(options))
(place / f"variables-{{job}}").write_text(" ".join(name for name in os.environ if name.startswith("SLURM_")))
array = re.match("0-([0-9]+)%", options.get("array", ""))
for task in range(int(array[1]) + 1) if array else [None]:
    variables = {{"SLURM_JOB_ID": job, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}}
    if task is not None:
        variables |= {{"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": str(task)}}
    with open(os.devnull, "wb") as nothing:
        process = subprocess.Popen(
            ["bash", script], env=os.environ | variables, stdout=nothing, stderr=nothing, start_new_session=True
        )
    (place / f"pid-{{job}}{{'' if task is None else f'_{{task}}'}}").write_text(str(process.pid))
(place / f"script-{{job}}").write_text(script.read_text())
print("Submitted batch job", job)
'''
SCONTROL = """#!{python} -B
import os, psutil, signal, subprocess, sys
from pathlib import Path
place, name = Path(__file__).parent, sys.argv[2]  # behind requeue
old = place / f"pid-{{name}}"
again = 'while kill -0 "$0"; do sleep 0.1; done; exec bash "$1"'
words = ["sh", "-c", again, old.read_text(), place / f"script-{{name.partition('_')[0]}}"]
with open(os.devnull, "wb") as nothing:
    process = subprocess.Popen(words, stdout=nothing, stderr=nothing, start_new_session=True)
for each in psutil.Process(int(old.read_text())).children(recursive=True):
    if each.pid not in (os.getpid(), process.pid):
        each.send_signal(signal.SIGTERM)
old.write_text(str(process.pid))
"""
SRUN = """#!{python} -B
import os, sys
from pathlib import Path
job = os.environ.get("SLURM_ARRAY_JOB_ID")
name = f"{{job}}_{{os.environ['SLURM_ARRAY_TASK_ID']}}" if job else os.environ["SLURM_JOB_ID"]
words = sys.argv[2:]  # behind --unbuffered
place = Path(__file__).parent
(place / f"srun-{{name}}").write_text(" ".join(words))
while words[0].startswith("--"):
    if "=" in words[0]:
        words = words[1:]
        continue
    place = words[1].replace("%A_%a", name).replace("%j", name).replace("%t", "0")
    os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1 if words[0] == "--output" else 2)
    words = words[2:]
os.execvp(words[0], words)
"""
SACCT = """#!{python} -B
from pathlib import Path
print("JobID|State|NodeList")
for path in Path(__file__).parent.glob("pid-*"):
    stat = Path(f"/proc/{{path.read_text()}}/stat")
    alive = stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    print(f"{{path.name[4:]}}|{{'RUNNING' if alive else 'NODE_FAIL'}}|here")
"""
SCANCEL = """#!{python} -B
import os, signal, sys
from pathlib import Path
os.killpg(int((Path(__file__).parent / f"pid-{{sys.argv[1]}}").read_text()), signal.SIGTERM)
"""


@pytest.fixture
def training(tmp_path):
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 500)
    config = get_preset("smoke").config_of({"steps": 30, "data": "text", "log_every": 5, "checkpoint_every": 10})
    (tmp_path / "out").mkdir()
    return Training(tmp_path / "out", config, None, text, load_corpus("text", None, text).sha256, "cpu")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The directory of commands that take the place of Slurm's."""
    place = tmp_path / "commands"
    place.mkdir()
    commands = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL, "scontrol": SCONTROL}
    for name, text in commands.items():
        (place / name).write_text(text.format(python=sys.executable))
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return place


def train(training, launcher):
    return train_runs(training, RUNS, launcher, Display(Console(file=io.StringIO()), RUNS, 0, training.config.steps))


def metrics(training):
    return [repeated_rows(training.job(run).directory / "metrics.jsonl") for run in RUNS]


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (Needs(), "--launcher slurm needs --resources minutes=M"),
        (Needs(minutes=5, gpu=0.5), "--resources has gpu=0.5, and Slurm gives whole ones"),
    ],
)
def test_what_slurm_cannot_give_is_refused(slurm, monkeypatch, needs, said):
    monkeypatch.setattr("experiments.run.slurm.find_spec", lambda name: object())
    with pytest.raises(ValueError, match=said):
        Slurm(needs=needs)


def test_without_submitit_or_slurm_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("experiments.run.slurm.find_spec", lambda name: object())
    with pytest.raises(ValueError, match="sbatch and srun, which are not here"):
        Slurm(needs=RESOURCES)
    monkeypatch.setattr("experiments.run.slurm.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"give pip install .*\[slurm\]"):
        Slurm(needs=RESOURCES)


def test_what_an_earlier_job_trains_is_not_submitted_again(slurm, training, monkeypatch):
    monkeypatch.setattr("experiments.run.slurm.find_spec", lambda name: object())
    monkeypatch.setattr("experiments.records.lease.RENEWED", 0.1)
    (job,) = prepare_runs(training, RUNS[:1])
    lease = Lease(job.directory)
    assert lease.take()
    write_status(job.directory, "running")
    assert prepare_runs(training, RUNS[:1]) == [job]
    assert run_status(training.root, *RUNS[0]).state == "running"
    (ended,) = follow([job], Slurm(needs=RESOURCES))
    lease.release()
    assert (ended.run, ended.state) == (RUNS[0], "running")
    assert f"an earlier job trains it (process {os.getpid()} on " in ended.reason


@pytest.fixture
def submitit():
    return pytest.importorskip("submitit", reason='submitit is not installed: pip install -e ".[slurm]"')


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_jobs_train_what_local_processes_do(submitit, slurm, tmp_path, training, cluster):
    assert train(training, Local()) == {}
    expected = metrics(training)
    training.root.rename(tmp_path / "local")
    training.root.mkdir()
    needs = RESOURCES._replace(cpu=2, memory=2.5)
    assert train(training, Slurm(needs=needs, workers=7, cluster=cluster)) == {}
    assert metrics(training) == expected
    assert [run_status(training.root, *run).state for run in RUNS] == ["done", "done"]
    if cluster == "slurm":
        (told,) = slurm.glob("job-*")
        options = eval(told.read_text())
        asked = {"array": "0-1%2", "time": "30", "cpus-per-task": "2", "mem": "2560MB", "job-name": "out"}
        assert asked.items() <= options.items()
        assert "--cpus-per-task=2" in (slurm / "srun-1000_0").read_text(), "srun does not take it from the job"


@pytest.mark.slow
@pytest.mark.full
def test_a_job_that_is_killed_without_a_word_fails_and_the_others_go_on(submitit, slurm, training):
    events, jobs = [], prepare_runs(training, RUNS)
    for event in follow(jobs, Slurm(needs=RESOURCES)):
        events.append(event)
        if event == Started(RUNS[0]):
            os.killpg(int((slurm / "pid-1000_0").read_text()), signal.SIGKILL)
    ended = {event.run: event for event in events if isinstance(event, Ended)}
    assert ended[RUNS[0]].state == "failed"
    assert "its job ended as NODE_FAIL; see " in ended[RUNS[0]].reason
    assert ended[RUNS[1]].state == "done"


@pytest.mark.slow
@pytest.mark.full
def test_a_stopped_driver_cancels_its_jobs_which_leave_a_checkpoint(submitit, slurm, training):
    object.__setattr__(training, "config", get_preset("smoke").config_of({"steps": 100_000, "data": "text"}))
    rows = training.job(RUNS[0]).directory / "metrics.jsonl"

    def interrupt():
        while not (rows.exists() and rows.stat().st_size):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Stopped, match="SIGINT"):
        train(training, Slurm(needs=RESOURCES))
    status = run_status(training.root, *RUNS[0])
    assert status.state == "queued"
    assert status.reason.startswith("stopped at step")
    assert [*(training.job(RUNS[0]).directory / "checkpoint").glob("step*/manifest.json")]


@pytest.mark.slow
@pytest.mark.full
def test_a_job_whose_time_ends_stops_after_a_checkpoint_and_goes_on(submitit, slurm, tmp_path, training):
    config = get_preset("smoke").config_of({"steps": 300, "data": "text", "log_every": 5, "checkpoint_every": 1000})
    object.__setattr__(training, "config", config)
    assert train(training, Local()) == {}
    expected = metrics(training)
    training.root.rename(tmp_path / "local")
    training.root.mkdir()
    rows = training.job(RUNS[0]).directory / "metrics.jsonl"

    def end_its_time():
        while not (rows.exists() and rows.stat().st_size):
            time.sleep(0.1)
        # Slurm sends it to the processes of the job's steps, and not to the script that starts these.
        for process in psutil.Process(int((slurm / "pid-1000_0").read_text())).children(recursive=True):
            process.send_signal(signal.SIGUSR2)

    threading.Thread(target=end_its_time, daemon=True).start()
    assert train(training, Slurm(needs=RESOURCES)) == {}
    assert metrics(training) == expected
    assert [note.startswith("resumed at step") for note in run_status(training.root, *RUNS[0]).notes] == [True]


@pytest.mark.slow
@pytest.mark.full
def test_jobs_are_stopped_when_slurm_takes_no_more_of_them(submitit, slurm, training, monkeypatch):
    monkeypatch.setattr("experiments.run.slurm.ARRAY", 1)
    accepting = (slurm / "sbatch").read_text()
    full = "if [*place.glob('job-*')]: sys.exit('sbatch: error: too many jobs')\n"
    (slurm / "sbatch").write_text(accepting.replace("options = dict", f"{full}options = dict"))
    with pytest.raises(ValueError, match=r"^Slurm took only 1 of 2 jobs, now stopped: sbatch: error: too many jobs$"):
        train(training, Slurm(needs=RESOURCES))
    told = subprocess.run([slurm / "sacct"], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[1:] == ["1000|NODE_FAIL|here"], "it has ended"


@pytest.mark.slow
@pytest.mark.full
def test_what_sbatch_refuses_is_one_line(submitit, slurm, training):
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    with pytest.raises(ValueError, match=r"^Slurm took no jobs: sbatch: error: invalid partition specified: x$"):
        train(training, Slurm(needs=RESOURCES))


@pytest.mark.slow
def test_the_job_that_a_command_is_given_in_says_nothing_of_those_it_submits(submitit, slurm, training, monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    (slurm / "srun").write_text("#!/bin/sh\nexit 3\n")
    jobs = prepare_runs(training, RUNS)
    (started, _) = Slurm(needs=RESOURCES).start(jobs)
    assert (slurm / "variables-1000").read_text() == "SLURM_CONF"
    assert os.environ["SLURM_NTASKS"] == "1"
    while started.poll() is None:
        time.sleep(0.1)
    assert "its job ended as NODE_FAIL; see " in started.poll()
