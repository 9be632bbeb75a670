"""The translate command."""

import sys

from experiments.console import make_console, say_that_it_loads
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
    texts = [line.removesuffix("\n") for line in sys.stdin] if options.text is None else [options.text]
    penalty = options.length_penalty
    console = make_console()
    for text in run.translate(texts, beams=options.beams, length_penalty=penalty, device=options.device):
        console.print(text, soft_wrap=True)
    return 0
