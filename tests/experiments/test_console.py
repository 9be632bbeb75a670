"""What a terminal shows of names is what they are, whatever characters they have."""

import pytest

from experiments.console import make_console, print_pairs

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
