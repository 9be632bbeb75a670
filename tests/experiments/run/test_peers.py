"""How many processes can train one run."""

import pytest

from experiments.cli import main
from experiments.run import peers
from experiments.run.peers import check_can_share


def test_a_batch_that_cannot_be_shared_evenly_is_refused(capsys, tmp_path):
    command = ["run", "convergence", "--preset", "smoke", "--data", "synthetic", "--batch-size", "4", "--nproc", "3"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "batch_size is 4, which 3 processes cannot share evenly" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    check_can_share(6, 3)


def test_one_process_has_nobody_to_share_weights_with(capsys):
    assert main(["run", "convergence", "--preset", "smoke", "--shard"]) == 2
    assert "--shard is given, and --nproc is 1; give --nproc 2 or more" in capsys.readouterr().err


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"accelerate; give pip install .*\[distributed\]"):
        check_can_share(4, 2)
    check_can_share(4, 1)
