"""A run's directory has one writer at a time, also where file locks do not reach."""

import os
import threading

import pytest

from experiments.records import lease
from experiments.records.lease import Lease, LeaseLost


@pytest.fixture
def soon(monkeypatch):
    """Leases are renewed after, and stale without for, less time than usual."""
    monkeypatch.setattr(lease, "RENEWED", 0.1)
    monkeypatch.setattr(lease, "STALE", 1.0)


@pytest.fixture
def elsewhere(monkeypatch):
    """Makes this process one of another machine."""

    def move(name):
        monkeypatch.setattr(lease, "machine", lambda: f"{name} 0123")

    move("here")
    return move


def waits(other):
    """Whether a lease is refused for a while, and had after it."""
    for attempt in range(1000):
        if other.take():
            return attempt > 0
        threading.Event().wait(0.05)
    raise AssertionError


def test_a_lease_that_is_renewed_is_not_taken_over(tmp_path, soon, elsewhere):
    mine = Lease(tmp_path)
    assert mine.take()
    elsewhere("there")
    other = Lease(tmp_path)
    for _ in range(50):  # more than twice as long as one that is not renewed would last
        assert not other.take()
        threading.Event().wait(0.1)
    mine.check()
    mine.release()
    assert other.take()
    with pytest.raises(LeaseLost, match=rf"another process has taken .*: process {os.getpid()} on there"):
        mine.check()
    other.release()
    assert list(tmp_path.iterdir()) == []


def test_another_machine_s_lease_is_taken_over_when_it_is_stale_and_its_owner_notices(tmp_path, soon, elsewhere):
    suspended = Lease(tmp_path)
    assert suspended.take()
    suspended._released.set()  # it renews no more, as if its machine stood still
    elsewhere("there")
    other = Lease(tmp_path)
    assert waits(other)
    with pytest.raises(LeaseLost):
        suspended.check()
    suspended.release()
    other.check()  # what is not one's own is not removed
    other.release()


def test_a_killed_process_s_lease_on_this_machine_is_taken_over_at_once(tmp_path):
    killed = Lease(tmp_path)
    assert killed.take()
    killed._released.set()
    assert Lease(tmp_path).take()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"id": "0", "machine": "there 0123"}'])
def test_whatever_is_in_the_file_is_a_lease_that_goes_stale(tmp_path, soon, content):
    (tmp_path / ".lease").write_bytes(content)
    other = Lease(tmp_path)
    assert waits(other)
    other.check()


def test_two_that_take_a_stale_lease_at_once_do_not_both_have_it(tmp_path, elsewhere, monkeypatch):
    monkeypatch.setattr(lease, "STALE", -1.0)
    for _ in range(20):
        (tmp_path / ".lease").write_bytes(b"stale")
        leases = [Lease(tmp_path) for _ in range(8)]
        start = threading.Barrier(len(leases))

        def take(one, start=start):
            start.wait()
            one.take()

        threads = [threading.Thread(target=take, args=(one,)) for one in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        owners = 0
        for one in leases:
            try:
                one.check()
                owners += 1
            except LeaseLost:
                pass
        assert owners <= 1
        for one in leases:
            one.release()
        (tmp_path / ".lease").unlink(missing_ok=True)
