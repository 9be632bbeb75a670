"""Options: from the command line and from files, each with what is said of a wrong one; and what answers at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.commands.run import resolved_config
from experiments.options import RunOptions, parse
from experiments.presets import get_preset
from experiments.variants import get_variant
from linear_rope.features.registry import FEATURE_MAPS

PROJECT = Path(__file__).parents[2]
REFERENCE = PROJECT / "results/reference/recall/comparison.json"


def parsed(*words):
    return parse("run", RunOptions, [*map(str, words)], "run")


def test_both_spellings_of_an_option_and_the_last_value_count():
    options = parsed("convergence", "--learning_rate", "1e-3", "--steps=5", "--steps", "7", "--cell-timeout=3")
    assert options.settings == {"learning_rate": 1e-3, "steps": 7}
    assert (options.study, options.run_timeout, options.dry_run) == ("convergence", 3.0, False)
    assert resolved_config(options).dim == get_preset("cpu").config.dim


def test_a_value_that_looks_like_an_option_is_left_as_it_is():
    assert parsed("decay", "--variants=--a_b").variants == "--a_b"
    assert parsed("decay", "--out", "--a_b c").directory == Path("--a_b c")


def test_a_text_of_one_s_own_is_the_data_set_text():
    assert parsed("decay", "--data-file", "x").settings == {"data": "text"}
    assert parsed("decay", "--data-file", "x", "--data", "stdlib").settings == {"data": "stdlib"}


def test_a_file_gives_options_and_the_command_line_comes_first(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'study = "decay"\npreset = "smoke"\nvariants = ["softmax-none", "elu+1-none"]\nlearning-rates = [1e-3, 2e-3]\n'
        "learning_rate = 1\nsteps = 3\ndry_run = true\n"
    )
    options = parsed("--config", path, "--steps", "4")
    assert (options.study, options.preset, options.dry_run) == ("decay", "smoke", True)
    assert (options.variants, options.learning_rates) == ("softmax-none,elu+1-none", "0.001,0.002")
    assert options.settings == {"learning_rate": 1.0, "steps": 4}


def test_a_comparison_is_run_exactly_again():
    record = json.loads(REFERENCE.read_text())
    options = parsed("--config", REFERENCE)
    assert (options.study, options.seeds) == ("recall", 3)
    assert options.variants == ",".join(variant["name"] for variant in record["variants"])
    config = resolved_config(options)
    assert {name: getattr(config, name) for name in record["config"]} == record["config"]
    assert parsed("--config", REFERENCE, "--data-file", "x").settings["data"] == "text"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("stepz = 3", "there is no option 'stepz'; did you mean 'steps'?"),
        ("steps = true", "steps is 'True'; give a whole number, as 3"),
        ("steps = 1.5", "steps is '1.5'; give a whole number, as 3"),
        ("dry_run = 1", "dry_run is 1; give true or false"),
        ('preset = "cpuu"', "preset is 'cpuu'; did you mean 'cpu'? choose from"),
        ("steps =", "is not TOML"),
        ("a = {b = 1}", "there is no option 'a'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, capsys, content, said):
    path = tmp_path / "wrong.toml"
    path.write_text(content)
    assert main(["run", "decay", "--config", str(path)]) == 2
    output, message = capsys.readouterr()
    assert (output, message.count("\n")) == ("", 1)
    assert said in message
    assert str(path) in message


def test_a_plugin_of_the_working_directory_adds_a_kernel(tmp_path, monkeypatch):
    (tmp_path / "squares.py").write_text(
        "from linear_rope.features.registry import FEATURE_MAPS\nFEATURE_MAPS['squares'] = FEATURE_MAPS['relu']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(FEATURE_MAPS, "squares", None)
    options = parsed("convergence", "--plugin", "squares", "--variants", "squares-rope-after")
    assert options.plugin == ("squares",)
    variant = get_variant("squares-rope-after@dim=64")
    assert (variant.kernel, variant.position, variant.baseline) == ("squares", "rope-after", "squares-none@dim=64")
    with pytest.raises(ValueError, match="did you mean 'squares-none'"):
        get_variant("squares-nine")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["list"], ["run", "decya"]])
def test_what_trains_nothing_loads_nothing_heavy(arguments):
    heavy = {"torch", "pandas", "matplotlib", "scipy"}
    program = f"import sys; from experiments.cli import main; main({arguments}); print({heavy} & {{*sys.modules}})"
    process = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert process.stdout.endswith("set()\n")


@pytest.mark.slow
def test_a_run_says_something_before_it_loads_pytorch(tmp_path):
    command = [sys.executable, "-m", "experiments", "run", "convergence", "--preset", "smoke", "--dry-run"]
    process = subprocess.run([*command, "--out", tmp_path], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert process.stdout.startswith("run convergence: loading PyTorch ...\n")
    assert process.stderr == ""
