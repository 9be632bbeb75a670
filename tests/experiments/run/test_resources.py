import pytest

from experiments.cli import main
from experiments.objects import Needs, parse_needs


def test_what_is_not_named_is_the_default():
    assert parse_needs("gpu=0.25,memory=8", Needs(cpu=2)) == Needs(cpu=2, gpu=0.25, memory=8)
    assert parse_needs(None, Needs(cpu=2, gpu=1)) == Needs(cpu=2, gpu=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--resources cpu=2", "leave it out with --launcher local"),
        ("--launcher ray --resources gpus=1", "--resources has 'gpus'; did you mean 'gpu'? choose from cpu, gpu, mem"),
        ("--launcher ray --resources cpu", "--resources has 'cpu'; give a positive number, as cpu=2"),
        ("--launcher slurm --resources cpu=0", "--resources has 'cpu=0'; give a positive number"),
    ],
)
def test_wrong_use_is_told_before_anything_is_loaded(tmp_path, capsys, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "convergence", *options.split()]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
