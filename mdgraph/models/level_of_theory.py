"""What the text of a level of theory says: the functional, and the dispersion in its energies."""

import re
from typing import Final

_DISPERSION: Final = (
    ("D2", r"D2"),
    ("D3(BJ)", r"D3\s*\(?BJ\)?"),
    ("D3(0)", r"D3\s*\(?(?:0|zero)\)?"),
    ("D3", r"D3"),
    ("D4", r"D4"),
    ("many-body dispersion", r"MBD(?:@rsSCS|-NL)?"),
    ("Tkatchenko-Scheffler", r"TS|TS-vdW|vdW-?TS"),
    ("VV10", r"r?VV10|NL"),
    ("XDM", r"XDM"),
)
"""Names of dispersions, and how they stand behind the name of a functional."""

_WITHIN: Final = (
    ("D2", r"\w+-D|wB97X-D"),
    ("D3", r"\w+-3c|wB97X-D3"),
    ("VV10", r"\w+-V"),
    ("a van der Waals functional", r"(?:rev-?)?vdW-?DF\w*|opt\w+-vdW|\w*BEEF-?vdW"),
    ("the dispersion of xTB", r"GFN\w*(?:-xTB)?|g-xTB"),
    ("wavefunctions", r"(?:RI-?|DLPNO-?)?(?:MP[2-4]|CCSD\(?T?\)?)"),
)
"""Methods that have a dispersion of their own."""


def functional_in(level: str) -> str:
    """The method of a level of theory such as `PBE-D3/def2-SVP`: `pbe`; empty if not stated.

    Case, hyphens and what stands behind a slash, a plus or a dispersion do not count.
    """
    method = _method(level)
    for _, pattern in _DISPERSION:
        method = re.sub(rf"[-+ ]+(?:{pattern})$", "", method, flags=re.IGNORECASE)
    return re.sub(r"[-\s]", "", method.partition("+")[0]).lower()


def dispersion_in(level: str) -> str:
    """The dispersion that a level of theory says is in its energies; empty if it says none."""
    method = _method(level)
    for name, pattern in _WITHIN:
        if re.fullmatch(rf"(?:{pattern})", method.replace("ω", "w"), flags=re.IGNORECASE):
            return name
    for name, pattern in _DISPERSION:
        if re.search(rf"(?:^|[-+ ])(?:{pattern})(?:$|[-+ ])", method, flags=re.IGNORECASE):
            return name
    return ""


def _method(level: str) -> str:
    """What stands before the basis set."""
    return level.partition("/")[0].strip()
