"""Templates: text that comes from files stays text, in HTML and in Markdown."""

import re
from pathlib import Path

import jinja2

from experiments.records.files import visible


def template(name: str) -> jinja2.Template:
    """A template, with filters that make text literal in Markdown; in HTML everything is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = _escape_markdown
    environment.filters["code"] = _markdown_code
    environment.filters["code_block"] = lambda text: "{0}\n{1}\n{0}".format(_fence(text, 3), text)
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["plain"] = plain
    return environment.get_template(name)


def plain(value: object) -> object:
    """A setting as a person would write it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(each)}" for name, each in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(plain(each)) for each in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


def _escape_markdown(text: object) -> str:
    """The text on one line, with what Markdown and HTML would interpret made literal."""
    one_line = " ".join(str(text).split())
    return re.sub(r"([\\`*<>|~]|_(?!\w)|(?<!\w)_|\](?=[(\[]))", r"\\\1", one_line.replace("&", "&amp;"))


def _markdown_code(text: str) -> str:
    one_line, fence = " ".join(text.split()), _fence(text, 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{one_line}{space}{fence}"


def _fence(text: str, least: int) -> str:
    """More backticks than the text has in a row."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def _visible(value: object) -> object:
    """What a template writes, with nothing invisible in it: texts come from files, and numbers need no check."""
    if isinstance(value, (jinja2.Undefined, int, float)):
        return value
    shown = visible(str(value))
    return value if shown == str(value) else shown
