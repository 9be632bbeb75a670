"""Takes the pictures for narrow screens of the figures that docs/ shows out of the reports, into docs/pictures/narrow.

python docs/narrow_pictures.py [results/reference]     when `python -m experiments report` has made the reports
"""

import base64
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
SHOWN = re.compile(r"!\[[^\]]*\]\([./]*results/reference/([^/]+)/figures/([^/]+)\.png\)")
PICTURE = re.compile(r'<source [^>]*base64,([^"]+)"(?:(?!<source).)*?<a href="figures/([^/"]+)\.png">', re.DOTALL)

if __name__ == "__main__":
    results = Path(*sys.argv[1:]) if sys.argv[1:] else DOCS.parent / "results" / "reference"
    for page in DOCS.rglob("*.md"):
        for comparison, stem in SHOWN.findall(page.read_text("utf-8")):
            report = (results / comparison / "report.html").read_text("utf-8")
            picture = {name: content for content, name in PICTURE.findall(report)}[stem]
            (DOCS / "pictures" / "narrow").mkdir(exist_ok=True)
            (DOCS / "pictures" / "narrow" / f"{comparison}-{stem}.png").write_bytes(base64.b64decode(picture))
