"""What licence a wheel says it is under, as an SPDX expression where it says so clearly.

Order of trust: `License-Expression` (PEP 639); the licence classifiers, where each names one licence; the
free text of `License`, where it is a known name. Everything else is told as it stands, or is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

# Trove classifiers that name exactly one licence; ones such as 'BSD License' name a family.
_CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: MIT No Attribution License (MIT-0)": "MIT-0",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
    "License :: OSI Approved :: The Unlicense (Unlicense)": "Unlicense",
    "License :: OSI Approved :: GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "License :: OSI Approved :: GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "License :: OSI Approved :: GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
}
_TEXTS = {  # beyond SPDX's own names, which the packaging library knows
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "mit license": "MIT",
    "the mit license": "MIT",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "mpl 2.0": "MPL-2.0",
    "gplv3+": "GPL-3.0-or-later",
}
_LONGEST_NAME = 80
_NO_ANSWER = ("", "unknown", "none", "other", "other/proprietary license", "dual license")


@dataclass(frozen=True)
class Licence:
    """Attributes:
    expression: SPDX; None where what the package says names no single licence.
    said: what the package says in its own words; None where it says nothing.
    """

    expression: str | None
    said: str | None

    @property
    def is_known(self) -> bool:
        return self.expression is not None or self.said is not None


def licence_of(metadata: Message) -> Licence:
    """Read a wheel's METADATA."""
    declared = str(metadata.get("License-Expression") or "").strip()
    if declared:
        expression = _spdx(declared)
        return Licence(expression, None if expression else declared)
    classifiers = [c for c in metadata.get_all("Classifier", []) if str(c).startswith("License ::")]
    named = [_CLASSIFIERS.get(str(classifier)) for classifier in classifiers]
    text = _one_line(str(metadata.get("License") or ""))
    by_text = _TEXTS.get(text.lower().rstrip(".")) or _spdx(text)
    if named and all(named):
        # Several classifiers do not say whether one may choose; such packages state it in words.
        if len(named) == 1:
            return Licence(named[0], None)
        return Licence(by_text, None if by_text else " / ".join(str(name) for name in named))
    if by_text is not None:
        return Licence(by_text, None)
    said = text if text.lower() not in _NO_ANSWER else ""
    shown = said or " / ".join(str(c).rpartition(" :: ")[2] for c in classifiers)
    return Licence(None, shown if shown.lower() not in _NO_ANSWER else None)


def _spdx(text: str) -> str | None:
    try:
        return canonicalize_license_expression(text) if text else None
    except InvalidLicenseExpression:
        return None


def _one_line(text: str) -> str:
    """The text where it is a name; nothing where somebody put a whole licence into the field."""
    return text.strip() if "\n" not in text.strip() and len(text.strip()) <= _LONGEST_NAME else ""
