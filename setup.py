"""Builds linear_rope/ops/linear/cpp, where there is a C++ compiler; all else is in setup.cfg."""

import hashlib
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = "-std=c++17 -O3 -g0 -ffp-contract=fast -fvisibility=hidden -Wno-psabi".split()
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS.append("-march=x86-64-v3")
SOURCES = sorted(path for path in Path("linear_rope/ops/linear/cpp").iterdir() if path.suffix in (".cpp", ".h"))
SHA256 = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()  # native.py compares it


class BuildNative(build_ext):
    """A plain shared library, which knows nothing of Python; it is made again whatever the times of files say."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"


class NativeWheel(bdist_wheel):
    """A wheel for a kind of machine and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


native = Extension(
    "linear_rope.ops.linear.libnative",
    ["linear_rope/ops/linear/cpp/native.cpp"],
    depends=[str(path) for path in SOURCES if path.suffix == ".h"],
    define_macros=[("LINEAR_ROPE_SOURCES", f'"{SHA256}"')],
    extra_compile_args=FLAGS,
    language="c++",
    optional=True,
)
setup(ext_modules=[native], cmdclass={"build_ext": BuildNative, "bdist_wheel": NativeWheel})
