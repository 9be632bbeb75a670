"""The Python interface: what a script makes, loaded, looked at and made to write."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from experiments import compare, load
from experiments.cli import main
from experiments.commands.export import export
from experiments.comparison import TrainedRun
from experiments.records.record import write_record
from linear_rope import CausalLM
from linear_rope.interop.settings import shape_of
from tests.made_up import quick

PROJECT = Path(__file__).parents[2]
SMOKE = {"preset": "smoke", "data": "stdlib", "steps": 4, "evaluate_every": 2, "log_every": 1, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("interface") / "made"
    with quick():
        compare(["softmax-rope", "elu+1-rope-after"], seeds=2, out=root, **SMOKE)
    return root


@pytest.fixture(autouse=True)
def without_a_display(monkeypatch):
    mpl.use("Agg")


@pytest.mark.slow
def test_a_process_that_measures_does_not_import_a_script_without_a_guard(tmp_path):
    (tmp_path / "script.py").write_text(
        "from experiments.commands.compare import the_script_is_not_imported_again\n"
        "from experiments.studies.speed.benchmark import in_fresh_process\n"
        "with the_script_is_not_imported_again():\n"
        "    print('finished', in_fresh_process(abs, -3))\n"
    )
    words, environment = [sys.executable, "script.py"], os.environ | {"PYTHONPATH": str(PROJECT)}
    said = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said == "finished 3\n"


def test_the_tables_are_those_of_the_report(made):
    comparison = load(made)
    assert set(comparison.curves["variant"]) == {"softmax-rope", "elu+1-rope-after"}
    pd.testing.assert_frame_equal(comparison.curves, pd.read_csv(made / "curves.csv"))
    assert len(comparison.summary) == len(pd.read_csv(made / "summary.csv"))
    assert comparison.directory == made
    assert repr(comparison) == f"Comparison(directory={made!r})"


@pytest.mark.parametrize(("metric", "points"), [("validation", 3), ("learning_rate", 4)])
def test_a_plot_has_each_seed_thin_and_the_mean_thick(made, metric, points):
    comparison = load(made)
    axes = comparison.plot(metric)
    # Floors, which go from side to side, have two points.
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) > 2]
    assert [line.get_linewidth() for line in lines] == [0.6, 0.6, 2] * 2
    assert all(len(line.get_xdata()) == points for line in lines)
    seeds, mean = [line.get_ydata() for line in lines[:2]], lines[2].get_ydata()
    assert mean == pytest.approx((seeds[0] + seeds[1]) / 2)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["softmax-rope", "elu+1-rope-after"]
    assert comparison.plot(metric, axes) is axes


def test_a_trained_model_writes_the_same_text_twice_and_reads_a_prompt_byte_for_byte(made):
    run = load(made).run("elu+1-rope-after", seed=1)
    model = run.model()
    assert not model.training
    text = run.generate("The ", tokens=12)
    assert 1 <= len(text.encode()) <= 36
    assert run.generate("The ", tokens=12) == text
    assert run.generate("The ", tokens=12, seed=1) != text
    prompt = bytes(range(256)).decode(errors="surrogateescape")  # as the command line has what is no UTF-8
    written = model.generate(torch.arange(256)[None], 9, temperature=0)[0, 256:]
    assert run.generate(prompt, tokens=9, temperature=0) == bytes(written.tolist()).decode(errors="replace")


def test_the_command_draws_as_the_method_does_and_prints_the_text_as_it_is(made, capsys):
    words = ["generate", str(made), "--variant", "elu+1-rope-after", "--prompt", "a\x07\x0c\rb", "--tokens", "40"]
    assert main([*words, "--temperature", "2", "--top-k", "50", "--top-p", "0.9", "--sample-seed", "4"]) == 0
    said = capsys.readouterr().out
    run, drawn = load(made).run("elu+1-rope-after"), {"temperature": 2.0, "top_k": 50, "top_p": 0.9, "seed": 4}
    assert said == "a\x07\x0c\rb" + run.generate("a\x07\x0c\rb", tokens=40, **drawn) + "\n"
    for option in drawn:
        others = {key: value for key, value in drawn.items() if key != option}
        assert run.generate("a\x07\x0c\rb", tokens=40, **others) not in said


def test_the_same_call_repeats_nothing(made, capsys):
    compare("softmax-rope,elu+1-rope-after", seeds=2, out=made, **SMOKE)
    assert "4 of 4 runs are done already" in capsys.readouterr().out


@pytest.mark.slow
def test_a_hybrid_is_trained_continued_and_loaded_with_the_settings_of_its_layers(tmp_path, capsys):
    name, out = "hybrid-3to1-rope@decay=pair@pair_denominator=head", str(tmp_path / "hybrid")
    words = ["run", "convergence", "--preset", "smoke", "--variants", name, "--seeds", "1", "--layers", "4"]
    with quick():
        for _ in range(2):
            assert main([*words, "--steps", "2", "--data", "stdlib", "--out", out]) == 0
    assert "1 of 1 runs are done already" in capsys.readouterr().out
    *linear, softmax = load(out).run(name).model().blocks
    assert all(block.attention.pair_denominator == "head" for block in linear)
    assert softmax.attention.decay is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda made: compare("softmax"), "there is no variant 'softmax'; did you mean 'softmax-"),
        (lambda made: compare([]), "variants is empty; give it a value"),
        (lambda made: compare("softmax-rope", out=3), "out is 3; give a path"),
        (lambda made: compare("softmax-rope", plugin=["a", 3]), "plugin is ['a', 3]; give a list of names"),
        (lambda made: compare("softmax-rope", stepz=3), "did you mean 'steps'?"),
        (lambda made: compare("softmax-rope", steps=0), "steps is 0; give a whole number, 1 or more"),
        (lambda made: compare("softmax-rope", experiment="all"), "compare makes one comparison"),
        (lambda made: load(made / "softmax-rope"), "holds no comparison.json"),
        (lambda made: load(made).plot("validatoin"), "did you mean 'validation'?"),
        (lambda made: load(made).run("softmax-rop"), "did you mean 'softmax-rope'?"),
        (lambda made: load(made).run("softmax-rope", 7), "seed is 7; choose from 0, 1"),
        (lambda made: load(made).run("softmax-rope").generate(""), "prompt is empty"),
        (
            lambda made: load(made).run("softmax-rope").generate("a", tokens=0),
            "tokens is 0; give a whole number, 1 or more",
        ),
        (lambda made: load(made).run("softmax-rope").generate("a", temperature=1e-9), "temperature is 1e-09; give"),
        (lambda made: load(made).run("softmax-rope").generate("a\ud800"), "surrogates not allowed"),
        (lambda made: load(made).run("softmax-rope").model("nowhere"), "device is 'nowhere'; give auto, cpu"),
    ],
)
def test_wrong_arguments_are_value_errors_that_say_what_would_do(made, wrong, said):
    with pytest.raises(ValueError, match=r".") as refusal:
        wrong(made)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_run_without_weights_has_no_model(made, tmp_path):
    write_record(tmp_path / "comparison.json", load(made).record)
    with pytest.raises(ValueError, match=r"softmax-rope seed 0 .* has no trained model \(it is queued\)"):
        load(tmp_path).run("softmax-rope").model()
    with pytest.raises(ValueError, match="no run has begun"):
        load(tmp_path).plot()


def exported(made, capsys, *more):
    """The exit status, and the only line of standard error."""
    status = main(["export", str(made), "--variant", "elu+1-rope-after", *more])
    lines = [line for line in capsys.readouterr().err.splitlines() if "loading PyTorch" not in line]
    return status, "\n".join(lines)


def test_a_trained_model_is_exported_and_read_by_others(made, capsys, tmp_path):
    model, tokens = load(made).run("elu+1-rope-after", seed=1).model(), torch.arange(40)[None]
    assert exported(made, capsys, "--to", "safetensors", "--seed", "1", "--out", str(tmp_path / "weights"))[0] == 0
    again = CausalLM(shape_of(json.loads((tmp_path / "weights" / "config.json").read_text())["model"])).eval()
    again.load_state_dict(load_file(tmp_path / "weights" / "model.safetensors"))
    assert torch.equal(again(tokens), model(tokens))
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    assert exported(made, capsys, "--to", "hf", "--seed", "1")[0] == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(made / "export" / "elu+1-rope-after-seed1-hf")
    assert torch.equal(theirs(tokens).logits, model(tokens))
    assert not [path for path in (made / "export").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter about itself
def test_a_trained_model_gives_the_same_in_onnxruntime(made, capsys, tmp_path):
    onnxruntime, _ = map(pytest.importorskip, ("onnxruntime", "onnxscript"))
    assert exported(made, capsys, "--to", "onnx", "--out", str(tmp_path / "onnx"), "--variant", "softmax-rope")[0] == 0
    session, tokens = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx"), torch.arange(120).view(3, 40)
    (logits,) = session.run(["logits"], {"tokens": tokens.numpy()})
    expected = load(made).run("softmax-rope").model()(tokens).detach()
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-5, atol=1e-5)


def test_an_export_overwrites_nothing_unless_it_is_asked_to(made, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_text("another")
    (tmp_path / "mine").write_text("kept")
    where = ["--to", "safetensors", "--out", "."]
    assert exported(made, capsys, *where) == (
        2,
        f"error: {tmp_path} holds files already; give another --out, or --overwrite",
    )
    assert (tmp_path / "model.safetensors").read_text() == "another"
    assert exported(made, capsys, *where, "--overwrite")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "mine", "model.safetensors"]
    assert len(load_file(tmp_path / "model.safetensors")) > 5


def test_what_cannot_be_exported_is_one_line_and_wrong_use(made, capsys, monkeypatch, tmp_path):
    out = ["--to", "safetensors", "--out", str(tmp_path / "new")]
    for more, words in {
        (*out, "--seed", "7"): "error: --seed is 7; choose from 0, 1",
        ("--to", "safetensors", "--out", __file__): f"--out is {__file__}, a file; give a directory",
        (*out, "--variant", "elu+1-rope"): "did you mean",
        ("--to", "gguf"): "gguf",
    }.items():
        status, line = exported(made, capsys, *more)
        assert status == 2
        assert words in line
        assert "\n" not in line
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    shutil.rmtree(copy / "elu+1-rope-after" / "seed0" / "checkpoint")
    assert "has no trained model" in exported(copy, capsys, *out)[1]
    monkeypatch.setattr("experiments.commands.export.find_spec", lambda _: None)
    assert "needs onnxscript: pip install" in exported(made, capsys, "--to", "onnx")[1]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="performer-pytorch"):
        export(TrainedRun(load(made), "performer-pytorch", 0), "safetensors", None, overwrite=False)
    assert not (tmp_path / "new").exists()
