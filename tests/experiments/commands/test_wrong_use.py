"""What is refused, in one line that says what would do, before anything is written."""

import dataclasses
import errno
import os
from importlib.metadata import EntryPoint, EntryPoints
from typing import Annotated, get_args, get_origin

import pytest

from experiments.cli import main
from experiments.commands import catalogue, describe
from experiments.config import SETTINGS, Config
from experiments.data.registry import DATA_SETS
from experiments.records.store import make_directory
from linear_rope import registry

FILES = {
    "stepz.toml": "stepz = 3",
    "bool.toml": "steps = true",
    "one.toml": "dry_run = 1",
    "cut.toml": "steps =",
    "list.toml": "study = ['decay']",
}


def scratch(tmp_path):
    (tmp_path / "short").write_bytes(b"too short")
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "report.md").write_text("mine")
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)


WRONG_USES = [
    ("", "no command came"),
    ("run", "run needs the name of a study"),
    ("rnu", 'Did you mean "run"?'),
    ("report", '"report" parameter DIRECTORY requires an argument'),
    ("report .", "comparison.json"),
    ("list junk", "Unused Tokens: ['junk']"),
    ("data --data-dir absent", "--data-dir: absent is not a directory"),
    ("run --config list.toml", "--config list.toml: study is ['decay']; give the name of one"),
    ("data --plugin no_such_module", "--plugin no_such_module cannot be imported"),
    ("generate . --prompt -x", "--prompt requires an argument; a value that begins with - is given as --prompt=-x"),
    ("generate . --variant x --prompt y --tokens 1.5", "--tokens is '1.5'; give a whole number"),
    ("generate . --variant x --prompt y --sample-seed -1", "--sample-seed is -1; give a whole number, 0 or more"),
    ("train .", "config.json cannot be read"),
    ("watch absent", "comparison.json"),
    ("watch . --every 0", "--every is 0.0; give a number, more than 0, 3,600 or less"),
    ("run decai", "there is no study 'decai'; did you mean 'decay'? choose from convergence, recipe, forgetting"),
    ("run speed --out dangling", "--out dangling cannot be written (File exists)"),
    (
        "run speed --seeds 2 --steps=3",
        "--seeds, --steps says what is trained, and speed trains nothing; it takes --preset",
    ),
    ("run all --steps 3", "--steps is for one study, and `run all` runs each by the command that its claims name"),
    ("run all --shard", "--shard is given, and --nproc is 1"),
    ("run benchmark --steps 3", "--steps would make other runs than those of benchmark v1"),
    ("run benchmark --preset gpu", "--preset is gpu; run benchmark has cpu and smoke"),
    ("run benchmark --task copyin", "--task: there is no task 'copyin'; did you mean 'copying'"),
    ("run benchmark --variants elu+1-none", "--variants is given without --task"),
    ("run benchmark --for 2", "--for is '2'; give a time such as 2h, 90m or 45s"),
]
WRONG_RUNS = [
    ("--stpes 3", "Unknown option: --stpes. Did you mean --steps?"),
    ("--steps many", "--steps is 'many'; give a whole number"),
    (f"--steps {'9' * 5000}", "999'; give a whole number"),
    ("--workers 0", "--workers is 0; give a whole number, 1 or more, 4,096 or less"),
    ("--preset cpuu", "--preset is cpuu, which convergence does not have; did you mean 'cpu'? choose from smoke"),
    ("--variants softmax-none,softmax-rpoe", "did you mean 'softmax-rope'?"),
    ("--variants=", "--variants is empty"),
    ("--variants elu+1-none,elu+1-none", "--variants: elu+1-none is named twice; name each variant once"),
    (f"--variants {'a' * 100_000}", "choose from softmax-none"),
    ("--launcher lokal", "--launcher is 'lokal'; did you mean 'local'?"),
    ("--tracker wandbb", "--tracker is 'wandbb'; did you mean 'wandb'?"),
    ("--config absent.toml", "absent.toml cannot be read"),
    ("--config stepz.toml", "--config stepz.toml: there is no option 'stepz'; did you mean 'steps'?"),
    ("--config bool.toml", "--config bool.toml: steps is True; give a whole number"),
    ("--config one.toml", "--config one.toml: dry_run is 1; give true or false"),
    ("--config cut.toml", "cut.toml is not TOML"),
    ("--dim 130 --heads 4", "not divisible"),
    ("--dim 131072 --layers 10000", "this machine has"),
    ("--context 262144 --batch-size 262144", "batch_size times context is 68,719,476,736 tokens a step; give values"),
    ("--examples 5", "--examples is 5, which is for labelled texts and translations, and --data stdlib is a text"),
    ("--variants softmax-rope@context=32", "--variants gives a context of 32, but only labelled texts are the same"),
    ("--task copying", "--task and --pack are for run benchmark"),
    ("--for 1h --launcher ray", "--for is for runs of this machine, and --launcher is ray"),
    ("--extend --dry-run", "--extend and --prepare change what is there, and --dry-run writes nothing"),
    ("--prepare --learning-rates 0.1,0.2", "leave out --learning-rates"),
    ("--shard", "--shard is given, and --nproc is 1; give --nproc 2 or more"),
    ("--data text", "--data-file"),
    ("--data stdlib --data-file short", "--data"),
    ("--data-file absent", "absent"),
    ("--data-file short", "context"),
    ("--out file/below", "cannot be written"),
    ("--out taken", "holds 'report.md' and no comparison.json"),
    ("--out loop", "--out loop cannot be written (Too many levels of symbolic links)"),
    (f"--out {'new/' * 1000}", "File name too long"),
    ("--out a\0\x1b[31mb", r"--out a\x00\x1b[31mb cannot be written ("),
    ("--out \ud800", r"--out \ud800 cannot be written"),
]
WRONG_USES += [(f"run convergence {words}", said) for words, said in WRONG_RUNS]


@pytest.mark.parametrize(("words", "said"), WRONG_USES, ids=range(len(WRONG_USES)))
def test_wrong_use_is_one_line_and_status_2(tmp_path, capsys, monkeypatch, words, said):
    scratch(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(words.split(" ") if words else []) == 2
    _, message = capsys.readouterr()
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert message[:-1].isprintable()
    assert len(message) < 5000
    assert said in message
    assert sorted(tmp_path.rglob("*")) == before


def test_list_has_one_order_and_offers_first_what_can_run_here(monkeypatch, capsys):
    """Installed packages come in the order in which a directory is read, which is none."""
    points = [EntryPoint(name, "experiments.data.stdlib:DATA_SET", "linear_rope.data") for name in "zab"]
    monkeypatch.setattr(DATA_SETS, "_items", dict(DATA_SETS._items))
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None if name == "torchdiffeq" else name)
    printed = []
    for found in (points, points[::-1]):
        monkeypatch.setattr(registry, "entry_points", lambda found=found: EntryPoints(found))
        registry.forget_packages()
        assert main(["list"]) == 0
        printed.append(capsys.readouterr().out)
    registry.forget_packages()
    assert printed[0] == printed[1]
    runs, cannot = printed[0].split("Variants that cannot run here")
    assert "elu+1-rope-after " in runs
    assert "softmax-floater " in cannot
    assert "softmax-floater " not in runs
    assert "needs torchdiffeq: pip install" in cannot
    here, elsewhere = cannot.split("Data sets not here")
    assert "  stdlib " in here
    assert "  stdlib " not in elsewhere


def test_variants_of_unequal_size_are_refused(tmp_path, monkeypatch, capsys):
    sizes = iter([(1000, 0), (1011, 0)])
    monkeypatch.setattr(describe, "count_parameters", lambda *_: next(sizes))
    words = ["run", "convergence", "--preset", "smoke", "--variants", "softmax-none,elu+1-none"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "1 %" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [1e30, -1e30, "nan", "inf", True, None, 1.5, "1"])
def test_a_setting_out_of_its_range_or_of_the_wrong_type_is_named(value):
    for name, kind in SETTINGS.items():
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        given = float(value) if value in ("nan", "inf") else value
        if (plain is float and given in (1.5, 1e30)) or (plain is str and isinstance(given, str)):
            continue
        with pytest.raises(ValueError, match=rf"^{name} is .*; (give|choose from|did you mean) [^\n]*$"):
            dataclasses.replace(Config(), **{name: given})


def test_what_could_not_be_made_leaves_nothing_of_its_directories(tmp_path, monkeypatch):
    def fail(**arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("experiments.records.store.tempfile.TemporaryFile", fail)
    with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\)"):
        make_directory(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
