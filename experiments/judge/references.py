"""The comparisons that the claims are judged on (references.toml), and the commands that make them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.console import program
from experiments.judge.claims import Claim
from experiments.study import expanded, fill, read_toml


class Reference(NamedTuple):
    """What a reference is a comparison of, the options of ``run`` that make it, and what is claimed of it."""

    study: str
    options: str = ""
    claims: Sequence[str] | None = None
    """keys and families of the claims that are judged on it; None: all of the study's"""
    elsewhere: Sequence[str] = ()
    """the families whose claims are judged on another reference"""


def _reference(fields: dict[str, Any], settings: dict[str, str]) -> Reference:
    variants = expanded(fields.pop("variants", ()))
    fields |= {"claims": expanded(fields["claims"])} if "claims" in fields else {}
    options = [fill(fields.pop("options", ""), settings), f"--variants {','.join(variants)}" if variants else ""]
    return Reference(options=" ".join(filter(None, options)), **fields)


_ROWS: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_suffix(".toml"))
REFERENCES = {name: _reference(fields, _ROWS["settings"]) for name, fields in _ROWS["references"].items()}


def declared_claims(claims: Sequence[Claim], name: str, study: str) -> list[Claim]:
    """Those of the study's claims that are judged on a comparison of this name: all, unless a reference has fewer.

    The page of claims and the report of a comparison judge the same ones, so that each has one p.
    """
    reference = REFERENCES.get(name, Reference(study))
    if reference.study != study:
        return list(claims)
    judged, elsewhere = reference.claims, reference.elsewhere
    found = [claim for claim in claims if judged is None or {claim.key, claim.family} & {*judged}]
    return [claim for claim in found if claim.family not in elsewhere]


def arguments(name: str) -> list[str]:
    """The words of the command that makes a reference; of a study from outside, those of its own name."""
    reference = REFERENCES.get(name, Reference(name))
    return ["run", reference.study, *reference.options.split(), "--out", f"results/runs/{name}"]


def command(name: str) -> str:
    """The same behind the program's name."""
    return " ".join([program(), *arguments(name)])
