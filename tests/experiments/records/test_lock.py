"""A comparison's directory has one command at a time, and a run's one writer, also where file locks do not reach."""

import io
import os
import threading

import pytest
from filelock import Timeout
from rich.console import Console

from experiments.records import lock
from experiments.records.lock import LeaseLost, check_lease, only_one_run, run_lease

ELSEWHERE = "filelock/2\npid=7\nhost=there\nmode=lease\ntoken=ab\nduration=0.5\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Leases are renewed after, and stale without for, less time than usual."""
    monkeypatch.setattr(lock, "RENEWED", 0.1)
    monkeypatch.setattr(lock, "STALE", 0.5)


def test_another_machine_s_lease_is_taken_over_when_it_is_not_renewed(tmp_path):
    marker, over = tmp_path / ".lease", threading.Event()
    marker.write_text(ELSEWHERE)

    def renew():
        while not over.wait(0.05):
            os.utime(marker)

    thread = threading.Thread(target=renew)
    thread.start()
    lease = run_lease(tmp_path)
    with pytest.raises(Timeout):
        lease.acquire(timeout=1, poll_interval=0.05)
    over.set()
    thread.join()
    lease.acquire(timeout=60, poll_interval=0.05)
    check_lease(lease)


def test_whoever_has_lost_it_notices_and_leaves_the_other_s_alone(tmp_path):
    lease = run_lease(tmp_path)
    lease.acquire(timeout=0)
    (tmp_path / "new").write_text(ELSEWHERE)
    os.replace(tmp_path / "new", tmp_path / ".lease")
    with pytest.raises(LeaseLost, match="another process has taken its directory over: process 7 on there"):
        check_lease(lease)
    lease.release()
    assert (tmp_path / ".lease").read_text() == ELSEWHERE


def test_a_lease_of_a_process_that_was_killed_before_it_wrote_who_it_is_is_taken_over(tmp_path):
    (tmp_path / ".lease").touch()
    run_lease(tmp_path).acquire(timeout=60, poll_interval=0.1)


def test_a_second_command_is_told_who_writes_and_the_next_who_was_killed(tmp_path):
    output = io.StringIO()
    console, me = Console(file=output, width=300), f"process {os.getpid()} on {os.uname().nodename}"
    with only_one_run(tmp_path, console):
        with pytest.raises(ValueError, match=f"is being written by {me}; wait, or give another --out"):
            lock.check_free(tmp_path)
        killed = (tmp_path / ".holder").read_bytes()
    with only_one_run(tmp_path, console):
        assert output.getvalue() == ""
    (tmp_path / ".holder").write_bytes(killed)
    with only_one_run(tmp_path, console):
        pass
    assert output.getvalue() == f"{me} was writing here and did not end by itself; this run goes on from it\n"
