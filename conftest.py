"""Settings of the test run."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # one core for each worker: threads of several kernels that wait for each other cost minutes
    os.environ.setdefault("OMP_NUM_THREADS", "1")
