"""Hides secrets in what we write, because people attach reports to public bug reports.

We recognise a secret by its name (`--api-key`, `password=`), by its place (the password of a URL, a
signature in its query) or by its shape (tokens of well-known services). Other secrets stay visible.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, TypeVar

MASK = "***"
Kept = TypeVar("Kept")

# How the name of a secret ends: words that always mean a secret, and words that do so only as a
# separate word of the name.
_ALWAYS = (
    r"(?:password|passwd|passphrase|pwd|secrets?|credentials?|api[-_.]?key|apitoken|auth[-_.]?token|access[-_.]?token)"
)
_AFTER = r"(?:token|auth(?:orization)?|(?:access|secret|private|account|storage|signing|encryption|auth|service)[-_.]?key(?:[-_.]?id)?)"
_BOUNDARY = r"(?:^|(?<=[-_.\W\d])|(?<=[a-z])(?=[A-Z]))"
_NAME = re.compile(rf"(?:(?i:{_ALWAYS})|{_BOUNDARY}(?i:{_AFTER}))$")
_KEY = re.compile(rf"{_BOUNDARY}(?i:key)$")
# names of text tokens, which are not secrets
_OF_TEXT = re.compile(
    r"(?i)(?:^|[-_.])(?:pad|eos|bos|unk|sep|cls|mask|next|prev|num|max|min|special|start|end|first|last|word|sub|image|text|decoder|encoder|per|a|the|new|this|stop|input|output)[-_.]?token$"
)
# a quick test: the patterns below match only texts that contain one of these
_HINT = re.compile(
    r"(?i)token|passw|passphrase|pwd|secret|credential|key|auth|bearer|sig|://|gh[opsru]_|github_pat|glpat|hf_|sk-|xox|A[KS]IA|AIza|eyJ|ya29|npm_|pypi-|PRIVATE"
)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_USERINFO = re.compile(
    r"(?P<scheme>(?<![\w+.-])[A-Za-z][\w+.-]{0,30}://)(?P<user>[^\s/?#@:'\"<>]{0,256})(?P<password>:[^\s/?#'\"<>]{0,512})?@"
)
_QUERY = re.compile(
    r"(?i)(?P<name>(?:[?&#;]|&amp;)[\w.~%-]{0,64}?(?:sig(?:nature)?|token|secret|password|passwd|pwd|credential|[-_]?key|keyid|key[-_]?pair[-_]?id|auth|sas)=)(?P<value>[^&\s'\"<>;]+)"
)
_HEADER = re.compile(
    r"(?i)(?P<name>\bauthorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:[a-z]+\s+)?)(?P<value>[^\s'\",;]{6,})"
)
_BEARER = re.compile(r"(?i)\b(?P<name>bearer\s+)(?P<value>[\w.~+/-]{8,}=*)")
# name=value, name: "value", 'name': 'value', environ["NAME"] = "value"
_ASSIGNED = re.compile(
    rf"(?P<name>(?<![\w.?&-])(?P<word>[\w.-]{{0,64}}?(?i:{_ALWAYS}|{_AFTER}))(?P<quote>\\?['\"]?)\]?)(?P<between>\s{{0,4}}(?:=|:)\s{{0,4}})"
    r"(?P<value>b?'(?:[^'\\\n]|\\.)*'|b?\"(?:[^\"\\\n]|\\.)*\"|\\\"[^\"\\\n]*\\\"|[^\s'\",;&)}\]]+)"
)
_OPTION = re.compile(
    r"(?P<name>(?<![\w-])--?(?P<word>[A-Za-z][\w.-]{0,64}))(?P<between>=|\s+)(?P<value>'[^']*'|\"[^\"]*\"|[^\s'\"]+)"
)
_SHAPES = re.compile(
    r"\b(?:gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|xox[abeoprs]-[\w-]{10,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is likely a secret."""
    return _NAME.search(name) is not None and _OF_TEXT.search(name) is None


def masked(text: str) -> str:
    """The text with asterisks in place of everything that looks like a secret."""
    if _HINT.search(text) is None:
        return text
    text = _PRIVATE_KEY.sub(rf"\1{MASK}", text)
    text = _USERINFO.sub(_hide_userinfo, text)
    text = _QUERY.sub(rf"\g<name>{MASK}", text)
    text = _HEADER.sub(rf"\g<name>{MASK}", text)
    text = _BEARER.sub(rf"\g<name>{MASK}", text)
    text = _OPTION.sub(_hide_option, text)
    text = _ASSIGNED.sub(_hide_assigned, text)
    return _SHAPES.sub(MASK, text)


def _hide_userinfo(found: re.Match[str]) -> str:
    if found["password"] is None:  # a token or a user name; hide both
        return f"{found['scheme']}{MASK}@"
    return f"{found['scheme']}{found['user']}:{MASK}@"


def _hide_option(found: re.Match[str]) -> str:
    if found["value"].startswith("-") or not _takes_secret(found["word"], found["value"]):
        return found[0]
    return f"{found['name']}{found['between']}{MASK}"


def _takes_secret(option: str, value: str) -> bool:
    """Whether an option's value is a secret: `--key` with random text is, `--key name` is not."""
    if option.lower().startswith(("no-", "use-", "with-", "enable-", "disable-", "skip-")):
        return False
    return is_secret_name(option) or (_KEY.search(option) is not None and _looks_random(value))


def _looks_random(value: str) -> bool:
    """Whether a word looks randomly generated: long, with letters and digits."""
    value = value.strip("'\"")
    return (
        len(value) >= 12
        and any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
        and not set(value) & set("/.")
    )


def _hide_assigned(found: re.Match[str]) -> str:
    word, value, between = found["word"], found["value"], found["between"]
    quoted = value[-1] in "'\""
    bare = value.strip("'\"b\\")
    nothing = bare in ("", "None", "True", "False", "null", "true", "false") or value == MASK
    # in a line of source code, a string may be a secret, but a name or a call is not
    code = not quoted and ("= " in between or "(" in value or "[" in value or value in (word, f"self.{word}"))
    # "token" may mean a token of a text: "unknown token: foo", {"token": "the"}
    plain_word = re.search(r"(?i)(?:token|auth)$", word) is not None and not (
        len(bare) >= 8 and any(map(str.isalnum, bare))
    )
    prose = ":" in between and not quoted and word.lower() in ("token", "secret", "auth")
    if nothing or code or plain_word or prose or not is_secret_name(word):
        return found[0]
    if value.startswith('\\"'):
        return f'{found["name"]}{between}\\"{MASK}\\"'
    quote = value[-1] if quoted else ""
    return f"{found['name']}{between}{quote}{MASK}{quote}"


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command line without secrets; the word after `--token` is a secret, too."""
    found: list[str] = []
    hide = ""
    for word in words:
        if hide and not word.startswith("-") and _takes_secret(hide, word):
            found.append(MASK)
            hide = ""
            continue
        name, equals, value = word.partition("=")
        option = name.lstrip("-")
        hide = option if name.startswith("-") and not equals else ""
        if (name.startswith("-") and equals and _takes_secret(option, value)) or (
            equals and name.isidentifier() and is_secret_name(name)
        ):
            found.append(f"{name}={MASK}")
        else:
            found.append(masked(word))
    return found


def without_secrets(value: Kept) -> Kept:
    """A copy of our own data (dataclasses, tuples, lists, dicts, strings) with every string masked."""
    copied: Kept = _copy(value, {})
    return copied


def _copy(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, str):
        return masked(value) if type(value) is str else value
    if value is None or isinstance(value, (int, float, bytes, type)):
        return value
    if id(value) in known:
        return known[id(value)]
    made = value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for part in dataclasses.fields(value):
            before = getattr(value, part.name)
            after = _copy(before, known)
            if after is not before and part.init:
                changed[part.name] = after
        made = dataclasses.replace(value, **changed) if changed else value
    elif type(value) in (list, tuple, set, frozenset):
        parts = [_copy(one, known) for one in value]
        if any(after is not before for after, before in zip(parts, value, strict=True)):
            made = type(value)(parts)
    elif isinstance(value, dict) or type(value).__name__ == "mappingproxy":
        names = {
            _copy(name, known): MASK
            if isinstance(name, str) and isinstance(one, str) and is_secret_name(name)
            else _copy(one, known)
            for name, one in value.items()
        }
        if names != dict(value):
            made = names
    known[id(value)] = made
    return made
