"""Damaged bytes: a drawn program of bytes makes many inputs, which is faster than to draw each of them."""

from hypothesis import HealthCheck, Phase

WORD = 6
"""bytes of a program that make one input"""
FUZZING = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "phases": [Phase.generate],  # no shrinking: the traceback shows the one change that failed
    "suppress_health_check": list(HealthCheck),
}
TOKENS = (
    *(b"NaN", b"1e999", b"-", b"0", b"9" * 30, b'"', b"{", b"}", b"[" * 2000, b"null", b"\\ud800", b"\\", b"\xff"),
    *(b"\0", b"\n", b"\r", b",", b":", b"'", b"=", b"\xef\xbb\xbf", b"1" * 5000),
)


def damaged(original, word, payload):
    """``original`` with one change: its kind, its place and its size are the bytes of ``word``."""
    kind, size, *place = word
    content = bytearray(original)
    start = int.from_bytes(place, "big") % max(1, len(content))
    match kind % 9:
        case 0:
            content[start : start + 1] = bytes([content[start] ^ 1 << size % 8]) if content else b""
        case 1:
            del content[start:]
        case 2:
            content[start : start + 1] = bytes([size])
        case 3:
            content[start:start] = bytes([size % 4 * 85]) * (size * 16)
        case 4:
            del content[start : start + size]
        case 5:
            content[start : start + 4] = (0, 1, 2**31 - 1, 2**32 - 1)[size % 4].to_bytes(4, "little")
        case 6:
            source = start * 7919 % max(1, len(content))
            content[start : start + size] = content[source : source + size]
        case 7:
            content[start:start] = TOKENS[size % len(TOKENS)]
        case _:
            # Random bytes, after as much of the beginning as a parser wants to see.
            content[size % 24 :] = payload
    return bytes(content)


def inputs_of(program, original):
    """One input a word of the program; every third is a change of the one before."""
    latest = original
    for index in range(0, len(program) - WORD + 1, WORD):
        latest = damaged(latest if index // WORD % 3 else original, program[index : index + WORD], program)
        yield latest
