"""The translate command."""

import sys

from experiments.console import say_that_it_loads
from experiments.options import TranslateOptions
from experiments.records.record import read_comparison


def translate(options: TranslateOptions) -> int:
    """Print what a trained model translates each text to, a line each. Returns the exit status.

    Raises ValueError if there is no such run, it is not finished, or it was trained for something else.
    """
    read_comparison(options.directory)  # what is none is refused before anything is loaded
    say_that_it_loads("translate", sys.stderr)
    from experiments.comparison import load

    run = load(options.directory).run(options.variant, options.seed)
    if options.text is None and sys.stdin.isatty():
        print("translate: each line that you write is translated when the input ends (Ctrl-D)", file=sys.stderr)
    lines = (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
    texts = list(lines) if options.text is None else [options.text]
    if count := sum("\ud800" <= character <= "\udfff" for text in texts for character in text):
        print(f"translate: bytes that are not UTF-8 are read as question marks ({count:,})", file=sys.stderr)
    for text in run.translate(texts, beams=options.beams, length_penalty=options.length_penalty, device=options.device):
        print(text)  # as it is: rich would leave control characters out
    return 0
