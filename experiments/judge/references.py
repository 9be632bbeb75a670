"""The comparisons that the claims are judged on (references.toml), and the commands that make them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.console import program
from experiments.judge.claims import Claim
from experiments.study import fill, read_toml


class Reference(NamedTuple):
    """What a reference is a comparison of, the options of ``run`` that make it, and what is claimed of it."""

    study: str
    options: str = ""
    claims: Sequence[str] | None = None
    """keys and families of the claims that are judged on it; None: all of the study's"""
    elsewhere: Sequence[str] = ()
    """the families whose claims are judged on another reference"""


def _read(path: Path) -> dict[str, Reference]:
    listed: dict[str, dict[str, Any]] = read_toml(path)
    settings, found = listed.pop("settings"), {}
    for name, fields in listed.items():
        variants = ",".join(
            f"{kernel}-{position}{size}"
            for group, size in (("variants", ""), ("narrow_variants", "@dim=32"))
            for kernel, positions in fields.get(group, {}).items()
            for position in positions
        )
        options = f"{fill(fields.get('options', ''), settings)} {variants and f'--variants {variants}'}"
        judged = {key: fields[key] for key in ("claims", "elsewhere") if key in fields}
        found[name] = Reference(fields["study"], options.strip(), **judged)
    return found


REFERENCES = _read(Path(__file__).with_suffix(".toml"))


def declared_claims(claims: Sequence[Claim], name: str, study: str) -> list[Claim]:
    """Those of the study's claims that are judged on a comparison of this name: all, unless a reference has fewer.

    The page of claims and the report of a comparison judge the same ones, so that each has one p.
    """
    reference = REFERENCES.get(name, Reference(study))
    if reference.study != study:
        return list(claims)
    judged = reference.claims
    return [
        claim
        for claim in claims
        if (judged is None or claim.key in judged or claim.family in judged) and claim.family not in reference.elsewhere
    ]


def command(name: str) -> str:
    """The command that makes a reference, into results/runs."""
    return " ".join([program(), *arguments(name)])


def arguments(name: str) -> list[str]:
    """The words of the command behind the program's name; of a study from outside, those of its own name."""
    reference = REFERENCES.get(name, Reference(name))
    return ["run", reference.study, *reference.options.split(), "--out", f"results/runs/{name}"]
