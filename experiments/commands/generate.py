"""The generate command."""

import sys

from experiments.console import make_console, say_that_it_loads
from experiments.options import GenerateOptions
from experiments.records.record import read_comparison


def generate(options: GenerateOptions) -> int:
    """Print the prompt and a trained model's continuation. Returns the exit status.

    Raises ValueError if there is no such run, it is not finished, or its model cannot take so many tokens.
    """
    read_comparison(options.directory)  # what is none is refused before anything is loaded
    say_that_it_loads("generate", sys.stderr)
    from experiments.comparison import load

    run = load(options.directory).run(options.variant, options.seed)
    text = run.generate(options.prompt, tokens=options.tokens, temperature=options.temperature, device=options.device)
    make_console().print(options.prompt + text, soft_wrap=True)
    return 0
