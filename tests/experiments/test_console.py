"""A terminal shows of names what they are, whatever characters they have; and how many cores a process may use."""

import math

import pytest

from experiments.console import cpu_quota, make_console, print_pairs

NAME = "a\tb [red]c[/red] :smile: \x1b[31m\u202e"
SHOWN = r"a\tb [red]c[/red] :smile: \x1b[31m\u202e"


@pytest.mark.parametrize(
    "show",
    [lambda console: console.print(f"{NAME}\n{NAME}"), lambda console: print_pairs(console, [(NAME, NAME)], NAME)],
)
def test_tabs_markup_and_escapes_in_names_are_shown_and_not_acted_on(show, capsys):
    show(make_console())
    shown = capsys.readouterr().out
    assert shown.count(SHOWN) >= 2
    assert not set("\t\x1b\u202e") & set(shown)


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, math.inf),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/of/the/host\n", {"cpu.max": "300000 100000"}, 3),
        ("", {}, math.inf),
    ],
)
def test_a_quota_of_control_groups_is_kept_to(tmp_path, own, files, cores):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert cpu_quota(tmp_path / "groups", tmp_path / "own") == cores
