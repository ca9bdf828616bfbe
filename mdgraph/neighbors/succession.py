"""Device function: how a kernel that was set up early waits for the one before."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Waits for the end of the kernel before, where this one was launched ahead of it.

    With programmatic dependent launch the programs of a kernel are set up while the last ones
    of the kernel before still run. To let them start any earlier takes more than it gives:
    they would sit where programs at work could be.
    """
    if EARLY:
        gdc_wait()
