"""docs/extending.md and docs/my-rope, as somebody would use them: a package, installed or as --plugin, and a wheel."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.test_install import copy_of_the_project, python

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs/extending.md"
SMOKE = ("--preset", "smoke", "--steps", "4", "--warmup-steps", "1", "--evaluate-every", "4")

COMMANDS = re.findall(r"^    linear-rope (run .*?)(?: +#.*)?$", PAGE.read_text(), re.MULTILINE)
SHOWN = [f"{command} --dry-run" for command in COMMANDS if "--plugin squareplus" not in command]
RUN = "run convergence --preset smoke"
SAID = {
    f"{RUN} --data countin": (2, "did you mean 'counting'? choose from stdlib, "),
    f"{RUN} --variants windowd-none": (2, "did you mean 'windowed-none'? choose from softmax-none, "),
    f"{RUN} --launcher one-by-on": (2, "did you mean 'one-by-one'? choose from 'local', "),
    "run gan": (2, "did you mean 'gain'? choose from convergence, "),
    f"{RUN} --data messages --data-dir .": (
        2,
        "--data messages is labelled texts and --objective next; give --tokenizer wordpiece",
    ),
    "data --data-dir .": (0, "scp me@example.org:messages.tsv ./messages.tsv"),
}

ASKED = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from experiments.cli import main
from experiments.data.registry import load_data

said = {}
for line in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
        status = main(line.split())
    said[line] = (status, output.getvalue())
examples = load_data("messages", Path("."))
told = (examples.kind, examples.classes, sum(examples.describe().splits.values()))
print(json.dumps({"said": said, "examples": told}))
"""


def write_examples(directory: Path) -> Path:
    """The package, and every fenced block of the page that is named as the file of that name."""
    shutil.copytree(
        PROJECT / "docs/my-rope", directory, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    for name, code in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        (directory / name).write_text(code)
    return directory


def pretend_to_install(directory: Path) -> None:
    """What pip would leave beside the package, so that it is found without pip."""
    project = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    information = directory / "my_rope-0.3.dist-info"
    information.mkdir()
    name, version = project["name"], project["version"]
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (information / "entry_points.txt").write_text("\n".join(groups))
    (information / "top_level.txt").write_text("my_rope\n")
    (information / "RECORD").write_text("my_rope/__init__.py,,\n")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page; nothing of it is installed."""
    return write_examples(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, as if it were installed where it is."""
    directory = write_examples(tmp_path_factory.mktemp("installed"))
    pretend_to_install(directory)
    return directory


def beside(*words: object, at: Path, path: Path | None = None) -> str:
    """What a Python process prints; ``path`` is where packages are besides the project."""
    return python(*words, at=at, PYTHONPATH=os.pathsep.join(map(str, filter(None, (PROJECT, path)))))


def suite(*words: object, **places: Path) -> str:
    return beside("-m", "experiments", *words, **places)


def plugins(comparison: Path) -> list[dict[str, str]]:
    return json.loads((comparison / "comparison.json").read_text())["plugins"]


@pytest.mark.slow
@pytest.mark.full
def test_an_installed_package_adds_a_map_a_position_a_kernel_data_and_a_tracker_and_the_record_names_it(
    installed, tmp_path
):
    """The data bring their kind of training, and a variant its name."""
    variants = "squareplus-fast,squareplus-rope-after,windowed-rope-before,squareplus-none,softmax-nearer"
    words = ["--data", "backwards", "--variants", variants, "--out", "out", "--tracker", "newest"]
    assert "squareplus-rope-after" in suite("run", "convergence", *SMOKE, *words, path=installed, at=tmp_path)
    assert (tmp_path / "out/report.html").exists()
    newest = json.loads((tmp_path / "out/squareplus-none/seed0/newest.json").read_text())
    assert {"step", "train/loss", "test/accuracy"} <= newest.keys()
    record = json.loads((tmp_path / "out/comparison.json").read_text())
    assert (record["objective"]["name"], record["objective"]["metric"]) == ("read backwards", "accuracy")
    assert record["variants"][0]["settings"] == {"learning_rate": 0.004}
    assert "squareplus-fast,test_accuracy,share of stretches,1," in (tmp_path / "out/summary.csv").read_text()
    taken_part = record["plugins"]
    modules = [f"my_rope.{module}" for module in "data kernels maps positions trackers variants".split()]
    assert [origin.pop("module") for origin in taken_part] == modules
    (sha256,) = {origin.pop("sha256") for origin in taken_part}
    assert re.fullmatch("[0-9a-f]{64}", sha256)
    assert taken_part == [{"package": "my-rope", "version": "0.3"}] * len(modules)


@pytest.mark.slow
def test_the_page_shows_commands_that_are_understood_and_a_wrong_name_lists_what_there_is(installed, tmp_path):
    """In one process, for each would import PyTorch anew."""
    rows = [f"so far {number}\t{number % 2}\n" for number in range(200)]
    (tmp_path / "messages.tsv").write_text("message\tis_unwanted\n" + "".join(rows))
    lines = json.dumps([*SHOWN, *SAID])
    asked = json.loads(beside("-c", ASKED, lines, path=installed, at=tmp_path).splitlines()[0])
    assert len(SHOWN) >= 4
    assert {line: asked["said"][line][0] for line in SHOWN} == dict.fromkeys(SHOWN, 0)
    assert asked["examples"] == ["text", ["wanted", "unwanted"], 200]
    for line, (expected, sentence) in SAID.items():
        status, said = asked["said"][line]
        assert status == expected
        assert sentence in said


@pytest.mark.slow
@pytest.mark.full
def test_a_plugin_adds_a_study_and_a_launcher_that_are_reported_and_judged(sources, tmp_path):
    shutil.copytree(sources / "my_rope", tmp_path / "my_rope")
    plugin = ("--plugin", "my_rope.plugin")
    suite("run", "gain", *SMOKE, *plugin, "--launcher", "one-by-one", at=tmp_path)
    out = tmp_path / "results/runs/gain"
    (origin,) = plugins(out)
    assert {**origin, "sha256": ""} == {"module": "my_rope.plugin", "package": "", "version": "", "sha256": ""}
    assert "RoPE after the map lowers the loss of squareplus." in (out / "report.md").read_text()
    assert (out / "figures/validation.png").exists()
    judged = suite("claims", "--results", "results/runs", *plugin, "--out", "claims.md", at=tmp_path)
    assert "1 inconclusive" in judged
    assert "lowers the loss of squareplus" in (tmp_path / "claims.md").read_text()
    # Other code is another sha256, and is not taken for the same.
    with (tmp_path / "my_rope/gain/parts.py").open("a") as file:
        file.write("# a change\n")
    suite("run", "gain", *SMOKE, *plugin, "--seeds", "2", at=tmp_path)
    (before, now) = plugins(out)
    assert before == origin
    assert now["module"] == origin["module"]
    assert now["sha256"] != origin["sha256"]


@pytest.mark.slow
@pytest.mark.full
def test_what_was_only_looked_at_or_took_part_in_another_comparison_is_not_on_record(installed, tmp_path):
    words = [*SMOKE, "--out", "out", "--variants"]
    code = (
        "from experiments.cli import main\n"
        "main(['list'])\n"
        f"main(['run', 'convergence', *{words}, 'softmax-none', '--plugin', 'json'])\n"
        f"main(['run', 'convergence', *{words}, 'softmax-rope'])\n"
        f"main(['run', 'convergence', *{SMOKE}, '--variants', 'softmax-none', '--out', 'b'])\n"
    )
    beside("-c", code, path=installed, at=tmp_path)
    assert [origin["module"] for origin in plugins(tmp_path / "out")] == ["json"]
    assert "plugins" not in json.loads((tmp_path / "b/comparison.json").read_text())


@pytest.mark.slow
def test_the_example_of_one_file_and_the_check_against_the_oracle_run(sources):
    assert "equal to the oracle" in beside("check_map.py", path=sources, at=sources)
    words = ["--plugin", "squareplus", "--variants", "elu+1-rope-after,squareplus-rope-after"]
    assert "squareplus-rope-after" in suite("run", "convergence", "--preset", "smoke", "--dry-run", *words, at=sources)


def interpreter(version: str) -> str:
    """A Python of this version that starts; skips the test if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for found in (shutil.which(f"python{version}"), *sorted(versions.glob(f"{version}.*/bin/python"))):
        if found is not None and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(found)
    pytest.skip(f"there is no Python {version} here")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_and_the_package_work_in_a_new_environment_outside_the_checkout(version):
    found = interpreter(version)
    with tempfile.TemporaryDirectory() as place:  # an environment is large, and pytest would keep it
        root = Path(place)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PATH"] = os.pathsep.join([str(root / "venv/bin"), os.environ["PATH"]])

        def run(*command: object, at: Path = root) -> str:
            words = list(map(str, command))
            process = subprocess.run(words, cwd=at, env=environment, capture_output=True, text=True, check=False)
            assert process.returncode == 0, f"{words}\n{process.stdout}{process.stderr}"
            return process.stdout

        source = copy_of_the_project(root / "source")
        write_examples(root / "example")
        run(found, "-m", "venv", "venv")
        pip = ("pip", "--disable-pip-version-check", "--no-input", "-q")
        constraints = ("-c", source / "constraints.txt")
        try:
            run(*pip, "install", *constraints, "torch")
        except AssertionError as error:
            pytest.skip(f"torch cannot be installed on Python {version}: {str(error).strip().splitlines()[-1]}")
        run(*pip, "wheel", "--no-deps", "-w", root / "wheels", source)
        (wheel,) = (root / "wheels").glob("linear_rope-*.whl")
        run(*pip, "install", *constraints, wheel, "./example")

        empty = root / "empty"
        empty.mkdir()
        assert run("linear-rope", "--version", at=empty).startswith("linear-rope ")
        listed = run("linear-rope", "list", at=empty)
        assert all(name in listed for name in ("convergence", "gain", "windowed-none", "squareplus-fast", "counting"))
        variants = "squareplus-rope-after,windowed-rope-before,softmax-rope"
        words = ["run", "convergence", *SMOKE, "--data", "counting", "--variants", variants]
        run("linear-rope", *words, at=empty)
        out = empty / "results/runs/convergence"
        assert {(origin["package"], origin["version"]) for origin in plugins(out)} == {("my-rope", "0.3")}
        (out / "report.html").unlink()
        run("linear-rope", "report", out, at=empty)
        assert (out / "report.html").exists()
        run("linear-rope", "run", "gain", *SMOKE, "--launcher", "one-by-one", at=empty)
        code = (
            "import experiments, sys; assert 'venv' in experiments.__file__\n"
            f"run = experiments.load({str(out)!r}).run('squareplus-rope-after', seed=0)\n"
            "print(len(run.generate('1 2 3', tokens=20)) > 0)"
        )
        assert run("python", "-c", code, at=empty) == "True\n"
        print(f"Python {version}: the wheel and the example package work in an empty directory")
