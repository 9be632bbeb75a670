"""The answer of the recall and the copying study."""

from experiments.report.answer import KERNELS, Findings, in_words


def answer(found: Findings) -> str:
    """The best of softmax attention, the best linear variant, and the best of each other kernel."""
    said: list[str] = []
    kernels: set[str] = set()
    ranking = sorted(found.finished, key=lambda variant: variant.kernel != "softmax")  # keeps the order of the others
    for variant in ranking:
        if variant.kernel in kernels:
            continue
        share = f"{found.final(variant.name).mean:.0%}"
        if not said:
            words = in_words(variant)
            said.append(f"{words[0].upper()}{words[1:]} gives {share} of the answers right")
        elif len(said) == 1 and variant.kernel != "softmax":
            said.append(f"the best linear variant, {in_words(variant)}, {share}")
        else:
            said.append(f"{KERNELS.get(variant.kernel, variant.kernel)} at most {share}")
        kernels.add(variant.kernel)
    return f"{', '.join(said)}." if said else ""
