"""What must not be remembered, whatever a model says: pasted text, orders, secrets. Pure.

None of it is a proof: it makes the easy ways hard. What gets through is told as a note that is no instruction, and what
an agent may do is decided by its approvals, not by what it remembers.
"""

from __future__ import annotations

import re
import unicodedata

from perdure.checksums import luhn

_PASTED = re.compile(
    r"^[ \t]*(?P<fence>```|~~~).*?(^[ \t]*(?P=fence)|\Z)"
    r"|(^[ \t]*>[^\n]*(\n|\Z))+"
    r"|^-{2,} ?(original message|forwarded message|weitergeleitete nachricht|ursprüngliche nachricht).*\Z"
    # the head of a mail, and all that follows it
    r"|^(from|von|发件人) ?[:\uff1a][^\n]+\n([^\n:\uff1a]{1,20}[:\uff1a][^\n]*\n)+.*\Z"
    r"|<(?P<tag>\w+)[^<>]*>.*?</(?P=tag)>",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


def own_words(text: str) -> str:
    """Return `text` without what somebody has visibly pasted into it: code, quotations, mails, markup."""
    return _PASTED.sub("[pasted text]\n", text).strip()


def plain(text: str) -> str:
    """Return `text` as it is compared: letters and digits alone, without case."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


_SENTENCE, _WIDE_SENTENCE = 20, 10
"""Letters and digits, and Chinese signs, from which on a text that is the same is no name or number any more."""


def repeats(text: str, source: str) -> bool:
    """Return whether a part of `text` as long as a sentence is word for word in `source`; a name or a number is not."""
    compact, found = plain(text).replace(" ", ""), plain(source).replace(" ", "")
    length = _SENTENCE if compact.isascii() else _WIDE_SENTENCE
    return any(compact[at : at + length] in found for at in range(len(compact) - length + 1))


_CHECKS = "(approv|confirm|permission|verif|authori[sz])"
_LACKING = r"(without|skip\w*|bypass\w*|no|never|not (need|ask|requir|wait)\w*)"
_MAY = "(must|should|shall|may|can|will|has to|have to|needs? to|ought to|is (to|allowed|required|supposed))"
_ORDERS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # to whoever reads it
        r"^(please|kindly|from now on|in (the )?future|whenever|make sure|be sure|remember to|note to)\b",
        r"^(always|never|do not|don't|must not) (?!\w+s\b)",
        r"^(ignore|disregard|forget|override|bypass|skip|obey|follow|respond|reply|answer|say|tell|act|pretend|behave)\b",
        r"^(speak|write|call|invoke|run|execute|use|send|forward|transfer|pay|wire|approve|confirm|delete|remove)\b",
        r"^(grant|give|book|recommend|treat|assume|include|add|append|share|reveal|show|print|output)\b",
        r"\byou (must|should|shall|may|can|will|are|have to|need to|ought to)\b",
        rf"\b(assistant|agent|ai|llm|model|chat ?bot|bot)s? {_MAY}\b",
        # about what holds it
        r"\b(ignor|disregard|forget|overrid|bypass)\w*\b.{0,40}\b(instruction|rule|prompt|polic|guideline|safety)",
        r"\b(system prompt|developer message|jailbreak|prompt injection)\b",
        rf"\b{_LACKING} ((need|ask\w*|wait\w*|further|for|of|any|to|be|the) )*{_CHECKS}",
        rf"\b{_CHECKS}\w* (is|are) (never|automatic|not (needed|required|necessary))",
        # marks of a chat
        r"<\|?/?(im_start|im_end|system|user|assistant|tool)|\[/?(inst|system)\]",
        r"^(system|assistant|developer|user) ?:",
        # in Chinese
        r"(忽略|无视|忘记).{0,10}(指令|规则|提示|以上|之前)",
        r"^(请|务必|必须|一定要|始终|永远|不要|不得|禁止|从现在(开始|起)|今后|以后)",
        r"(你|助手|智能体|模型)(必须|应该|应当|需要|可以|不得|不能|务必|要)",
        r"(无需|不需要|跳过|免)\S{0,4}(批准|审批|确认|授权|许可)",
    )
]


def is_order(text: str) -> bool:
    """Return whether a fact reads as if it told the assistant what to do, rather than how something is."""
    line = " ".join(unicodedata.normalize("NFKC", text).split())
    return any(pattern.search(line) for pattern in _ORDERS)


_SECRETS = re.compile(
    r"\b(password|passcode|passphrase|passwort|kennwort|pin|cvv|cvc|credentials?)\b"
    r"|\b(api|secret|private|access)[ _-]?(key|token)\b"
    r"|密码|口令|验证码"
    r"|\bsk-[\w-]{12,}|\b(?=\w*\d)(?=\w*[a-z])\w{32,}\b",
    re.IGNORECASE,
)
_CARD = re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)")


def carries_secret(text: str) -> bool:
    """Return whether a text names a password or key, or has the number of a payment card in it."""
    return bool(_SECRETS.search(text)) or any(luhn(re.sub(r"\D", "", found)) for found in _CARD.findall(text))
