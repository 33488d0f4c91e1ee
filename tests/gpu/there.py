"""Whether there is a GPU: SPMDX_GPU=1 says so."""

import os

REAL = os.environ.get("SPMDX_GPU", "") not in ("", "0")
