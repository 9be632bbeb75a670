"""What the tests of launchers share: a text, runs of it, a cluster of Ray, and commands in the place of Slurm's."""

import contextlib
import dataclasses
import io
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from experiments.data.registry import load_data
from experiments.presets import get_preset
from experiments.run.display import Display
from experiments.run.local import Local
from experiments.run.loop import Ended, follow
from experiments.run.plan import Training

PROJECT = Path(__file__).parents[3]

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


def training_of(root, text, nproc=1, **config):
    """What the runs of a comparison share; its directory is made."""
    root.mkdir(parents=True)
    config = dataclasses.replace(get_preset("smoke").config, data="text", **config)
    return Training(root, config, None, text, load_data("text", None, text).sha256, "cpu", nproc=nproc)


def train(training, runs, launcher=None, limit=None, output=None, silence=math.inf):
    """Train the runs, by processes of this machine unless it is said; returns how those ended that are not done."""
    display = Display(Console(file=output or io.StringIO(), width=200), runs, 0, training.config.steps)
    ended = {}
    for event in follow(training, runs, launcher or Local(), silence, limit):
        display.show(event)
        if isinstance(event, Ended) and event.state != "done":
            ended[event.run] = event
    return ended


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a text"
    path.write_text("".join(f"{number**2} to be or not to be {number}\n" for number in range(3000)))
    return path


@pytest.fixture
def training(tmp_path, text):
    return training_of(tmp_path / "out", text, steps=10)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The directory of commands that take the place of Slurm's."""
    pytest.importorskip("submitit", reason='submitit is not installed: pip install -e ".[slurm]"')
    place = tmp_path / "commands"
    place.mkdir()
    commands = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL, "scontrol": SCONTROL}
    for name, command in commands.items():
        (place / name).write_text(command.format(python=sys.executable))
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return place


def ray_variables():
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # As if the machine were the cluster's alone: Ray's workers otherwise give way to everything else.
    return kept | {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def cluster(monkeypatch):
    """Three nodes of Ray, of one core each, on this machine, the head first; the launcher finds them."""
    ray = pytest.importorskip("ray", reason='Ray is not installed: pip install -e ".[ray]"')
    place = Path(tempfile.mkdtemp(prefix="ray-"))  # a short path: sockets are in it

    def started():
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() == "raylet" and str(place) in " ".join(process.cmdline()):
                    found.add(process)
        return found

    def start(*options):
        before = started()
        command = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus=1", *options]
        done = subprocess.run(command, env=ray_variables(), cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (raylet,) = started() - before
        return raylet, done.stdout

    try:
        raylet, told = start("--head", "--port=0", "--include-dashboard=false", f"--temp-dir={place}")
        address = re.search(r"--address='([^']+)'", told)[1]
        monkeypatch.setenv("RAY_ADDRESS", address)
        yield [raylet, *(start(f"--address={address}")[0] for _ in range(2))]
    finally:
        ray.shutdown()
        for process in psutil.process_iter():  # `ray stop` would end other clusters too
            with contextlib.suppress(psutil.Error):
                if str(place) in " ".join(process.cmdline()):
                    process.kill()
        shutil.rmtree(place, ignore_errors=True)
