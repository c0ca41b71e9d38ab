"""What personal data and credentials look like in text, and what is shown in their place. Pure.

Every pattern takes time that grows with the length of the text and no faster: repetitions are bounded or possessive,
and a look-behind keeps a search from beginning again inside what it has just refused. What is put in place is never
found again, so that redacting twice is redacting once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from perdure.checksums import luhn
from perdure.telemetry.initials import initials

STARS = "****"
"""Stands for what is not shown."""

_GAP = "[ \u00a0\u2009\u202f\u2010-\u2013-]"
"""Between groups of digits: spaces that don't break, and dashes, as well."""

_LEFT, _RIGHT = r"(?<![A-Za-z0-9_*])", r"(?![A-Za-z0-9_*])"
"""Ends of a word of ASCII; Chinese text stands beside numbers without a space."""

Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Detector:
    """One kind of thing that is not to be shown.

    Attributes:
        kind: What it is, such as `phone`.
        pattern: What it looks like. It has to take time in proportion to the text, and not to match what `mask` gives.
        mask: Returns what is shown in place of a match, or None where it is not one after all.
        hints: Text without any of these words (in small letters, where the pattern ignores case) is not searched.
        longest: Characters of the longest match, where it is one of your own: a stream holds back so many.
    """

    kind: str
    pattern: re.Pattern[str]
    mask: Callable[[Match], str | None] = lambda _: STARS
    hints: tuple[str, ...] = ()
    longest: int = 128

    def redact(self, text: str) -> str:
        """Return `text` with every match masked."""
        if self.hints:
            searched = text.lower() if self.pattern.flags & re.IGNORECASE else text
            if not any(hint in searched for hint in self.hints):
                return text
        out: list[str] = []
        done = at = 0
        while (found := self.pattern.search(text, at)) is not None:
            shown = self.mask(found)
            if shown is None or found.end() == found.start():
                at = found.start() + 1
                continue
            out += text[done : found.start()], shown
            done = at = found.end()
        return "".join([*out, text[done:]]) if out else text


# -- credentials -------------------------------------------------------------------------------------------

_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----END)[\s\S])*+"
    r"(?:-----END[A-Z0-9 ]{0,60}+(?:-----)?)?"
)
PRIVATE_KEY = "[private key]"

_URL = re.compile(r"(?<=://)[^\s/@:*]{0,128}:[^\s/@]{1,256}@")

_JWT = re.compile(r"(?<![A-Za-z0-9_.*-])eyJ[\w-]++\.[\w-]++(?:\.[\w-]*+){0,3}")

_BEARER = re.compile(
    r"(?i)(?<![A-Za-z0-9_])"
    r"(bearer[ \t]{1,3}|authorization[\"']?[ \t]?[:=][ \t]?[\"']?(?:basic|token)[ \t]{1,3})([\w.~+/=-]++)"
)

_KEY_PREFIXES = (
    r"sk-(?:proj-|ant-|or-|svcacct-)?|[spr]k_(?:live|test)_|whsec_|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|xapp-"
    r"|hf_|npm_|pypi-|AIza|ya29\.|gsk_|r8_|xai-|SG\.|shpat_|dckr_pat_|dop_v1_|tvly-|pplx-|nvapi-"
)
_API_KEY = re.compile(rf"(?<![A-Za-z0-9_*-])({_KEY_PREFIXES})[A-Za-z0-9_.-]{{15,}}+")
_AWS = re.compile(rf"{_LEFT}(AKIA|ASIA|AROA|LTAI|AKID)[A-Za-z0-9]{{12,36}}{_RIGHT}")

LABELS_OF_SECRETS = (
    r"api[_ -]?key|api[_ -]?token|access[_ -]?key(?:[_ -]?id)?|secret(?:[_ -]?(?:access[_ -]?)?key)?"
    r"|private[_ -]?key|passw(?:or)?d|passphrase|pwd"
    r"|(?:auth|access|refresh|id|bearer|session)[_ -]?token|token|set-cookie|cookie"
    r"|密码|口令|密钥|令牌"
)
QUOTES = "\"'“”‘’`"
ASSIGNED = rf"\\?[{QUOTES}]?[ \t]{{0,2}}[:=：＝][ \t]{{0,2}}"
_QUOTED = (
    r"\\\"(?P<escaped>(?:(?!\\\")[^\n])++)"
    r"|\"(?P<double>(?:[^\"\n\\]|\\.)++)"
    r"|'(?P<single>(?:[^'\n\\]|\\.)++)"
    r"|“(?P<curly>[^”\n]++)"
)
_VALUE = rf"(?:{_QUOTED}|(?P<bare>[^\s\"'“”,;&，；。、]++))"
_LABELLED = re.compile(rf"(?i)({LABELS_OF_SECRETS})({ASSIGNED}){_VALUE}")
_WEAK_WORD = re.compile(r"(?i)token|cookie")
_PROOF = 20
"""So long a value is no word: "unexpected token: something" stays."""
_SHORTEST_TOKEN = 8


def _in_place(found: Match, shown: str) -> str:
    """Return a labelled value with another one in its place, its label and opening quote kept."""
    return f"{found[0][: found.start(found.lastgroup or 0) - found.start()]}{shown}"


def _labelled(found: Match) -> str | None:
    value = found[found.lastgroup or 0]
    weak = _WEAK_WORD.fullmatch(found[1]) and not (len(value) >= _PROOF or re.search(r"\d", value))
    brackets = value[len(value.rstrip(")]}")) :] if found.lastgroup == "bare" else ""
    return None if weak else _in_place(found, f"{STARS}{brackets}")


def _bearer(found: Match) -> str | None:
    value = found[2]
    proven = len(value) >= _PROOF or (len(value) >= _SHORTEST_TOKEN and re.search(r"\d", value))
    return f"{found[1]}{STARS}" if proven else None


# -- names -------------------------------------------------------------------------------------------------

NAME_WORDS = (
    r"(?:passenger|full|first|last|middle|given|family|contact|customer|guest|travell?er|patient|client|holder|card_?holder"
    r"|recipient|sender|owner|user)[_ -]?name|surname|(?:乘客|旅客|客户|联系人|收件人|持卡人)?姓名"
)
_LABELLED_NAME = re.compile(rf"(?i)(?<![A-Za-z])({NAME_WORDS})({ASSIGNED})(?:{_QUOTED})")


def _labelled_name(found: Match) -> str:
    return _in_place(found, initials(found[found.lastgroup or 0]))


# -- e-mail ------------------------------------------------------------------------------------------------

CJK = "⺀-鿿豈-﫿가-힯＀-／：-￯"
"""Characters of scripts without spaces, as the inside of a character class: they end a word."""

_LOCAL = re.compile(rf"[^\W{CJK}]|[.%+-]")
_DOMAIN = re.compile(rf"(?:[^\W{CJK}]|-)++(?:\.(?:[^\W{CJK}]|-)++)++")


def hide_emails(text: str) -> str:
    """Return `text` with e-mail addresses masked: the first letter and the domain stay."""
    out: list[str] = []
    done, at = 0, text.find("@")
    while at >= 0:
        domain, start = _domain(text, at + 1), at
        while domain and start > done and _LOCAL.match(text, start - 1):
            start -= 1
        if domain and start < at and text[start - 1 : start] != "*":
            out += text[done:start], f"{text[start]}***@{domain[0]}"
            done = domain.end()
        at = text.find("@", domain.end() if domain else at + 1)
    return "".join([*out, text[done:]]) if out else text


def _domain(text: str, at: int) -> Match | None:
    """Return the domain at that place, the last of them in a@b.c@d.e."""
    found = _DOMAIN.match(text, at)
    while found and text.startswith("@", found.end()) and (further := _DOMAIN.match(text, found.end() + 1)):
        found = further
    return found


# -- numbers of people -------------------------------------------------------------------------------------

_PROVINCES = frozenset(
    [*range(11, 16), *range(21, 24), *range(31, 38), *range(41, 47), *range(50, 55), *range(61, 66), 71, 81, 82, 83]
)
"""First two digits of Chinese identity numbers."""
_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)

_CHINESE_ID = re.compile(rf"{_LEFT}(\d{{6}})({_GAP}?)(\d{{8}})\2(\d{{3}}[\dXx]){_RIGHT}")
_OLD_CHINESE_ID = re.compile(rf"{_LEFT}\d{{15}}{_RIGHT}")
_SSN = re.compile(rf"(?<![.-]){_LEFT}(?!000|666|9)\d{{3}}-(?!00)\d{{2}}-(?!0000)(\d{{4}}){_RIGHT}(?!-)")
_IBAN = re.compile(
    rf"[A-Z]{{2}}(?<![A-Za-z0-9_*][A-Z]{{2}})\d{{2}}(?: ?[A-Z0-9]{{4}}){{2,7}}(?: ?[A-Z0-9]{{1,3}})?{_RIGHT}"
)
_SHORTEST_IBAN = 15
_IBAN_COUNTRIES = re.compile(
    "A[DELTZ]|B[AEGHRY]|C[HRYZ]|D[EKO]|E[EGS]|F[IOR]|G[BEILRT]|H[RU]|I[ELQST]|JO|K[WZ]|L[BCITUVY]|M[CDEKRTU]|N[LO]"
    "|P[KLST]|QA|R[OS]|S[ACEIKMTV]|T[LNR]|UA|V[AG]|XK"
)


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        return 1900 <= date(year, month, day).year < 2100  # noqa: PLR2004
    except ValueError:
        return False


def checksum(digits: str) -> str:
    """Return the last character of a Chinese identity number that begins with these 17 digits (ISO 7064)."""
    total = sum(int(digit) * weight for digit, weight in zip(digits, _WEIGHTS, strict=True))
    return "10X98765432"[total % 11]


def _chinese_id(found: Match) -> str | None:
    """A number with a right checksum is one wherever it was issued; with a wrong one (a slip), by its province."""
    number = f"{found[1]}{found[3]}{found[4]}".upper()
    if not _is_date(int(number[6:10]), int(number[10:12]), int(number[12:14])):
        return None
    right = checksum(number[:17]) == number[17]
    return f"{number[:3]}{STARS}{number[-4:]}" if right or int(number[:2]) in _PROVINCES else None


def _old_chinese_id(found: Match) -> str | None:
    number = found[0]
    fits = int(number[:2]) in _PROVINCES and _is_date(1900 + int(number[6:8]), int(number[8:10]), int(number[10:12]))
    return f"{number[:3]}{STARS}{number[-4:]}" if fits else None


def _iban(found: Match) -> str | None:
    number = found[0].replace(" ", "")
    if not _IBAN_COUNTRIES.fullmatch(number[:2]):
        return None
    rearranged = "".join(str(int(character, 36)) for character in number[4:] + number[:4])
    fits = len(number) >= _SHORTEST_IBAN and int(rearranged) % 97 == 1
    return f"{number[:4]}{STARS}{number[-4:]}" if fits else None


# -- bank cards --------------------------------------------------------------------------------------------

_CARD = re.compile(
    rf"{_LEFT}(?:\d{{13,19}}"
    rf"|\d{{4}}({_GAP})\d{{4}}\1\d{{4}}\1\d{{4}}(?:\1\d{{1,3}})?"
    rf"|\d{{4}}({_GAP})\d{{6}}\2\d{{4,5}}"
    rf"|\d{{6}}{_GAP}\d{{10,13}}){_RIGHT}"
)
_NETWORKS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|222[1-9]\d{12}|22[3-9]\d{13}|2[3-6]\d{14}|27[01]\d{13}|2720\d{12}"  # Mastercard
    r"|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11,16}|35\d{14,17}"  # American Express, Diners, JCB
    r"|62\d{14,17}|8[12]\d{14,17}|6(?:011|4[4-9]\d|5\d\d)\d{12,15}"  # UnionPay, RuPay, Discover
    r"|220[0-4]\d{12,15}|9792\d{12}|(?:50|5[678]|6304|6759|676[1-3])\d{9,17}"  # Mir, Troy, Maestro
)


def _card(found: Match) -> str | None:
    digits = re.sub(r"\D", "", found[0])
    return f"{STARS}{digits[-4:]}" if _NETWORKS.fullmatch(digits) and luhn(digits) else None


# -- phones ------------------------------------------------------------------------------------------------

_CHINESE_MOBILE = re.compile(
    rf"{_LEFT}((?:(?:\+|00)?86{_GAP}?)?)(1[3-9]\d(?:{_GAP}?\d{{4}}){{2}}|1[3-9]\d{{2}}{_GAP}\d{{3}}{_GAP}\d{{4}}){_RIGHT}"
)
_INTERNATIONAL = re.compile(r"(?<![A-Za-z0-9_*+])\+[1-9](?:[ .()-]{0,2}+\d){7,14}+(?![A-Za-z0-9_*])")
_IN_PARENTHESES = re.compile(rf"(?<![A-Za-z0-9_*])\(\d{{2,5}}\){_GAP}?\d{{3,5}}{_GAP}?\d{{3,4}}{_RIGHT}")
_AMERICAN = re.compile(rf"(?<![.-]){_LEFT}(?:1[ .-])?[2-9]\d\d([ .-])[2-9]\d\d\1\d{{4}}{_RIGHT}(?![.-]\d)")
_WITH_ZERO = re.compile(
    rf"(?<![.\-/]){_LEFT}(?:"
    r"0\d{2,3}-\d{3,4} ?\d{4}"
    r"|0[1-9]([ .-])\d\d(?:\1\d\d){3}"
    r"|0\d{2,4}([ .-])\d{3,4}\2\d{3,4}"
    rf"|0\d{{2,4}}[ /-]\d{{5,8}}){_RIGHT}(?![.\-/]\d)"
)
PHONE_WORDS = r"(?:tele|mobile[ _-]?)?phone|tel|mobile|cell|fax|whatsapp|wechat|电话|手机|手机号|联系方式|号码"
_LABELLED_PHONE = re.compile(
    rf"(?i)(?<![A-Za-z])((?:{PHONE_WORDS})(?:[ _-]?(?:number|no\.?)|号码?)?\\?[{QUOTES}]?[ \t]{{0,2}}"
    rf"(?:[:=：＝]|is|是)?[ \t]{{0,2}}\\?[{QUOTES}]?)(\+?\d{{7,15}}){_RIGHT}"
)
_FEWEST = 9
"""Digits of a national number with its area code."""


def masked_number(number: str) -> str:
    """Return a phone number of no known plan with its middle hidden, less of it shown where it is short."""
    digits = re.sub(r"\D", "", number)
    if len(digits) < 8:  # noqa: PLR2004
        return f"{STARS}{digits[-2:]}"
    plus = "+" if number.strip().startswith("+") else ""
    first, last = (3, 4) if len(digits) >= 11 and not plus else (2, 4 if len(digits) >= 10 else 2)  # noqa: PLR2004
    return f"{plus}{digits[:first]}{STARS}{digits[-last:]}"


def _chinese_mobile(found: Match) -> str:
    digits = re.sub(r"\D", "", found[2])
    return f"{found[1]}{digits[:3]}{STARS}{digits[-4:]}"


def _in_parentheses(found: Match) -> str | None:
    return masked_number(found[0]) if sum(character.isdigit() for character in found[0]) >= _FEWEST else None


# -- all of them -------------------------------------------------------------------------------------------

_KEY_HINTS = (
    "sk-",
    "_live_",
    "_test_",
    "whsec_",
    "gh",
    "glpat-",
    "xox",
    "xapp-",
    "hf_",
    "npm_",
    "pypi-",
    "AIza",
    "ya29.",
    "gsk_",
    "r8_",
    "xai-",
    "SG.",
    "shpat_",
    "dckr_pat_",
    "dop_v1_",
    "tvly-",
    "pplx-",
    "nvapi-",
)
_SECRET_HINTS = ("key", "token", "secret", "pass", "pwd", "cookie", "密码", "口令", "密钥", "令牌")
_PHONE_HINTS = ("phone", "tel", "mobile", "cell", "fax", "whatsapp", "wechat", "电话", "手机", "联系方式", "号码")

IN_TEXT: tuple[Detector, ...] = (
    Detector("private_key", _PEM, lambda _: PRIVATE_KEY, ("-----BEGIN",)),
    Detector("password", _URL, lambda _: f"{STARS}@", ("://",)),
    Detector("token", _JWT, lambda _: f"eyJ{STARS}", ("eyJ",)),
    Detector("token", _BEARER, _bearer, ("bearer", "authorization")),
    Detector("api_key", _API_KEY, lambda found: f"{found[1]}{STARS}", _KEY_HINTS),
    Detector("api_key", _AWS, lambda found: f"{found[1]}{STARS}", ("AKIA", "ASIA", "AROA", "LTAI", "AKID")),
    Detector("password", _LABELLED, _labelled, _SECRET_HINTS),
    Detector("name", _LABELLED_NAME, _labelled_name, ("name", "姓名")),
    Detector("phone", _LABELLED_PHONE, lambda found: f"{found[1]}{masked_number(found[2])}", _PHONE_HINTS),
    Detector("account", _IBAN, _iban),
)
IN_NUMBERS: tuple[Detector, ...] = (
    Detector("identity", _CHINESE_ID, _chinese_id),
    Detector("card", _CARD, _card),
    Detector("identity", _OLD_CHINESE_ID, _old_chinese_id),
    Detector("identity", _SSN, lambda found: f"{STARS}{found[1]}"),
    Detector("phone", _CHINESE_MOBILE, _chinese_mobile),
    Detector("phone", _INTERNATIONAL, lambda found: masked_number(found[0])),
    Detector("phone", _IN_PARENTHESES, _in_parentheses, ("(",)),
    Detector("phone", _AMERICAN, lambda found: masked_number(found[0])),
    Detector("phone", _WITH_ZERO, lambda found: masked_number(found[0]), ("0",)),
)
"""Those that are always there, in the order in which they look."""

_NUMBERS = re.compile(rf"[+(\d][\d +().\/Xx{_GAP[1:-1]}]{{6,}}+")


def hide(text: str) -> str:
    """Return `text` with everything hidden that is found without being told of it."""
    for detector in IN_TEXT:
        text = detector.redact(text)
    return _NUMBERS.sub(_hide_numbers, hide_emails(text))


def _hide_numbers(found: Match) -> str:
    """Return one stretch of digits and what stands between them, looked at with the characters beside it."""
    left, right = found.string[max(found.start() - 1, 0) : found.start()], found.string[found.end() : found.end() + 2]
    text = f"{left}{found[0]}{right}"
    for detector in IN_NUMBERS:
        text = detector.redact(text)
    return text[len(left) : len(text) - len(right)]
