"""Puts the committed results on the site, under the paths that they have in the repository.

Pages of docs/ link to them as they do on GitHub (``../results/...``). On the site docs/ is the root, so one ``../`` of
such a link goes. A link to a file that is not on the site, such as code, becomes its text.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).parents[1]
SHOWN = (
    "results/claims.csv",
    "results/README.md",
    "results/reference/*/report.md",
    "results/reference/*/figures/*.png",
    "results/convergence/figures/*.png",
    "results/benchmark/**/*.md",
    "results/benchmark/**/figures/*.png",
)
"""reports are there once `report` has made them: a link to the folder of a comparison leads to its report"""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
FILE = re.compile(r"^(```\w+) ([\w/.-]+)$", re.MULTILINE)  # the file that a block of code is
IMAGE = re.compile(r'<img alt="[^"]*" src="([^"]+)" ?/?>')
ROLE = re.compile(r":\w+:<code>~?(?:[\w.]+\.)?(\w+)</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the results."""
    for pattern in SHOWN:
        for path in sorted(PROJECT.glob(pattern)):
            place = path.relative_to(PROJECT).as_posix()
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at what is on the site."""
    place = PurePosixPath(page.file.src_uri)
    in_repository = place if place.parts[0] == "results" else PurePosixPath("docs", place)

    def replaced(link: re.Match[str]) -> str:
        picture, text, path, anchor = link.groups()
        target = normpath(str(in_repository.parent / path)).removeprefix("docs/")
        for shown in (target, f"{target}/report.md"):
            if files.get_file_from_path(shown) is not None:
                return f"{picture}[{text}]({relpath(shown, place.parent)}{anchor or ''})"
        if picture or not (PROJECT / target).exists():
            return link[0]  # a mistake, of which --strict tells
        return text

    markdown = FILE.sub(r'\1 title="\2"', markdown)
    # What stands in a block of code is no link.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Roles of docstrings, such as :class:`Name`, become the name; figures open alone, to be seen in full size."""

    def linked(image: re.Match[str]) -> str:
        drawn = PurePosixPath(image[1]).parent.name == "figures"
        figure = image[0].replace("<img", '<img class="drawn"') if drawn else image[0]
        return f'<a href="{image[1]}">{figure}</a>'

    return IMAGE.sub(linked, ROLE.sub(r"<code>\1</code>", html))
