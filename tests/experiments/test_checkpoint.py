import torch
from torch import nn

from experiments.checkpoint import load_newest_checkpoint, save_checkpoint


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


def test_a_checkpoint_restores_weights_and_optimizer(tmp_path):
    model, optimizer = trained(3)
    save_checkpoint(tmp_path, 3, model, optimizer)
    checkpoint, notes = load_newest_checkpoint(tmp_path)
    assert (checkpoint.step, notes) == (3, [])
    again, again_optimizer = trained(0)
    again.load_state_dict(checkpoint.model)
    again_optimizer.load_state_dict(checkpoint.optimizer)
    for m, o in ((model, optimizer), (again, again_optimizer)):
        o.zero_grad()
        m(torch.ones(1, 3)).sum().backward()
        o.step()
    assert torch.equal(model.weight, again.weight)


def test_the_newest_two_are_kept(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, *trained(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step00000002", "step00000003"]


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, *trained(step))
    weights = tmp_path / "step00000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    checkpoint, notes = load_newest_checkpoint(tmp_path)
    assert checkpoint.step == 1
    assert "step00000002" in notes[0]
    assert "checksum" in notes[0]


def test_without_any_the_cell_starts_anew(tmp_path):
    assert load_newest_checkpoint(tmp_path / "checkpoint") == (None, [])
