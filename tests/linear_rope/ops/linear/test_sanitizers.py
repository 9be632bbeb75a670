"""The kernel's own tests pass with a kernel that watches its memory, its arithmetic and its threads.

The address and undefined-behaviour sanitizers watch it as it is; ThreadSanitizer does not understand OpenMP's threads,
so there it starts threads of its own. That each sanitizer finds what it is there for is tested on a spoilt copy.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from linear_rope.ops.linear.native import sources_sha256

PROJECT = Path(__file__).parents[4]
CPP = PROJECT / "linear_rope/ops/linear/cpp"
SANITIZERS = {
    "address": (["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], "libasan.so"),
    "thread": (["-fsanitize=thread", "-DLINEAR_ROPE_THREADS", "-pthread"], "libtsan.so"),
}
# Python and PyTorch are not compiled for them: what they do is not looked at.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 halt_on_error=1",
}
TESTS = """
import sys
from pathlib import Path
import pytest
from linear_rope.ops.linear import native
native.LIBRARY = Path(sys.argv[1])
tests = [f"tests/linear_rope/ops/linear/test_{name}.py" for name in ("native", "random_calls")]
# Not captured: what a sanitizer writes as it ends the process would be lost.
status = pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", *tests, *sys.argv[2:]])
assert native.library()._name == sys.argv[1]
sys.exit(status)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="no GCC with sanitizers"),
]


def run_tests(root: Path, sanitizer: str, *options: str, spoil: tuple[str, str] | None = None) -> tuple[int, str]:
    """The exit status and the output of the kernel's own tests with a copy of the kernel under a sanitizer."""
    source = shutil.copytree(CPP, root / "cpp")
    if spoil is not None:
        files = [path for path in source.iterdir() if spoil[0] in path.read_text()]
        assert len(files) == 1, files
        files[0].write_text(files[0].read_text().replace(*spoil))
    flags, runtime = SANITIZERS[sanitizer]
    library = root / "libnative.so"
    instructions = ["-march=x86-64-v3"] if os.uname().machine == "x86_64" else []
    words = ["g++", "-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=fast", "-Wno-psabi"]
    words += [f'-DLINEAR_ROPE_SOURCES="{sources_sha256(source)}"', "-shared", "-fPIC", *instructions, *flags]
    words += [str(source / "native.cpp"), "-o", str(library)]
    subprocess.run(words, check=True)
    found = subprocess.run(["g++", f"-print-file-name={runtime}"], check=True, capture_output=True, text=True)
    # Not for the compiler's own children: only the interpreter is to load it.
    environment = os.environ | OPTIONS | {"LD_PRELOAD": str(Path(found.stdout.strip()).resolve())}
    environment |= {"OMP_NUM_THREADS": "4", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-c", TESTS, str(library), *options]
    if sanitizer == "thread" and shutil.which("setarch"):
        command = ["setarch", "-R", *command]  # ThreadSanitizer needs the addresses where they always are
    process = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    status, output = run_tests(tmp_path, sanitizer, "-m", "not slow")
    assert status == 0, output[-8000:]
    assert " passed" in output


@pytest.mark.parametrize(
    ("sanitizer", "spoil", "word"),
    [
        # One number too many of each row, of which the last is not the tensor's.
        ("address", ("i < n ? width : 0", "i < n ? width + 1 : 0"), "AddressSanitizer: heap-buffer-overflow"),
        # Two threads that take the same task.
        ("thread", ("std::atomic<long> next{0};", "long next{0};"), "ThreadSanitizer: data race"),
    ],
)
def test_the_sanitizers_find_what_is_wrong(sanitizer: str, spoil: tuple[str, str], word: str, tmp_path: Path) -> None:
    status, output = run_tests(tmp_path, sanitizer, "-k", "bits", spoil=spoil)
    assert status != 0
    assert word in output, output[-8000:]
