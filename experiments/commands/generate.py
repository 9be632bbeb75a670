"""The generate command."""

import sys

from experiments.console import say_that_it_loads
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
    text = run.generate(
        options.prompt,
        tokens=options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.sample_seed,
        device=options.device,
    )
    print(options.prompt + text)  # as it is: rich would leave control characters out
    return 0
