"""Options: from the command line and from files; and what answers at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.commands.plan import make_plan
from experiments.variants import get_variant
from linear_rope.features.registry import FEATURE_MAPS
from tests.made_up import run_options_of

PROJECT = Path(__file__).parents[2]
REFERENCE = PROJECT / "results/reference/recall/comparison.json"


def test_both_spellings_of_an_option_and_the_last_value_count():
    options = run_options_of("convergence", "--learning_rate", "1e-3", "--steps=5", "--steps", 7, "--run-timeout=3")
    assert options.settings == {"learning_rate": 1e-3, "steps": 7}
    assert (options.study, options.run_timeout, options.dry_run) == ("convergence", 3.0, False)
    assert run_options_of("decay", "--plan").dry_run
    assert run_options_of("decay", "--out=--a_b c").directory == Path("--a_b c")
    # A text of one's own is the data set "text".
    assert run_options_of("decay", "--data-file", "x").settings == {"data": "text"}
    assert run_options_of("decay", "--data-file", "x", "--data", "stdlib").settings == {"data": "stdlib"}


def test_a_file_gives_options_and_the_command_line_comes_first(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'study = "decay"\npreset = "smoke"\nvariants = ["softmax-none", "elu+1-none"]\nlearning-rates = [1e-3, 2e-3]\n'
        "learning_rate = 1\nsteps = 3\ndry_run = true\n"
    )
    options = run_options_of("--config", path, "--steps", "4")
    assert (options.study, options.preset, options.dry_run) == ("decay", "smoke", True)
    assert (options.variants, options.learning_rates) == ("softmax-none,elu+1-none", "0.001,0.002")
    assert options.settings == {"learning_rate": 1.0, "steps": 4}


def test_a_comparison_is_run_exactly_again():
    record = json.loads(REFERENCE.read_text())
    options = run_options_of("--config", REFERENCE)
    assert (options.study, options.seeds) == ("recall", 3)
    assert run_options_of("recall", "--config", REFERENCE).settings == options.settings
    assert options.variants == ",".join(variant["name"] for variant in record["variants"])
    config = make_plan(options).config
    assert {name: getattr(config, name) for name in record["config"]} == record["config"]
    assert run_options_of("--config", REFERENCE, "--data-file", "x").settings["data"] == "text"


def test_a_plugin_of_the_working_directory_adds_a_kernel(tmp_path, monkeypatch):
    (tmp_path / "squares.py").write_text(
        "from linear_rope.features.registry import FEATURE_MAPS\nFEATURE_MAPS['squares'] = FEATURE_MAPS['relu']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(FEATURE_MAPS, "squares", None)
    options = run_options_of("convergence", "--plugin", "json", "--plugin=squares", "--variants", "squares-rope-after")
    assert options.plugin == ("json", "squares")
    variant = get_variant("squares-rope-after@dim=64")
    assert (variant.kernel, variant.position, variant.baseline) == ("squares", "rope-after", "squares-none@dim=64")
    with pytest.raises(ValueError, match="did you mean 'squares-none'"):
        get_variant("squares-nine")


def python(code, **environment):
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.argv = ['linear-rope']; from experiments.cli import app, main; {code}",
    ]
    process = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return process.stdout


def test_what_trains_nothing_loads_nothing_heavy_and_the_help_of_run_is_two_screens():
    heavy, commands = ["torch", "pandas", "matplotlib", "scipy"], ["--help", "--version", "list", "run decya"]
    code = f"[main(words.split()) for words in {[*commands, 'run --help']}]; print({{*{heavy}}} & {{*sys.modules}})"
    said = python(code, COLUMNS="100").partition("Usage: linear-rope run ")[2]
    assert said.endswith("set()\n")
    assert len(said.splitlines()) <= 120  # two screens of 60
    assert all(f"│ {option} " in said for option in ("--preset", "--for", "--learning-rate", "--threads"))
    assert "over the last 40 % of the" in said, "no text is cut short"


def test_a_shell_completes_options_and_their_values():
    said = python("print(app.generate_completion(shell='bash'))")
    assert all(word in said for word in ("--learning-rate", "inverse-sqrt", "translate"))


@pytest.mark.slow
def test_a_run_says_something_before_it_loads_pytorch(tmp_path):
    said = python(f"main(['run', 'convergence', '--preset=smoke', '--dry-run', '--out={tmp_path}'])")
    assert said.startswith("run convergence: loading PyTorch ...\n")
