"""Test processes beside each other (``pytest -n``) and all that they start compute with one thread each.

With as many threads each as there are cores, the threads wait for one another: the whole takes four times as long.
"""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
