"""Conversations as a tokenizer's chat template renders them, for `perdure data pack --turns`.

    perdure.render_chat("chats.jsonl", "Qwen3-8B", "turns.jsonl")      # needs Jinja2
    perdure data pack --tokenizer=Qwen3-8B --turns=turns turns.jsonl --format=megatron --output=chats.bin
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .errors import InvalidError, NotFoundError, UnsupportedError

Message = Mapping[str, Any]
Span = tuple[int, int]


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


class Template:
    """The chat template of a tokenizer's directory: chat_template.jinja, or that of tokenizer_config.json.

    Templates are programs of others. They run in Jinja's sandbox, as transformers runs them."""

    def __init__(self, tokenizer: str | os.PathLike[str], template: str | None = None) -> None:
        try:
            from jinja2.exceptions import TemplateError
        except ImportError as e:
            raise UnsupportedError("chat templates need Jinja2; pip install jinja2") from e
        from jinja2.ext import Extension, loopcontrols
        from jinja2.nodes import CallBlock
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        directory = os.fspath(tokenizer)
        config = _read_json(os.path.join(directory, "tokenizer_config.json"))
        text = template if template is not None else self._find(directory, config)
        spans: list[Span] = []

        class Generation(Extension):
            """{% generation %} ... {% endgeneration %}: what the assistant wrote. Jinja writes a block's text after the block has
            run, so the text before it is not known here: the block marks its text, and render() finds the marks."""

            tags = {"generation"}

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

            def _mark(self, caller: Any) -> str:
                return _BEGIN + caller() + _END

        def fail(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        environment.globals["raise_exception"] = fail
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._template = environment.from_string(text)
        self._error = TemplateError
        self._marks = "generation" in text and "endgeneration" in text
        self._special = {name: value["content"] if isinstance(value, dict) else value for name, value in config.items()
                         if name.endswith("_token") and isinstance(value, (str, dict))}

    @staticmethod
    def _find(directory: str, config: dict[str, Any]) -> str:
        path = os.path.join(directory, "chat_template.jinja")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                return f.read()
        found = config.get("chat_template")
        if isinstance(found, list):  # several by name
            found = {entry["name"]: entry["template"] for entry in found}.get("default")
        if not isinstance(found, str):
            raise NotFoundError(f"{directory} has no chat template, neither chat_template.jinja nor in tokenizer_config.json; give one: template=...")
        return found

    def _render(self, messages: Sequence[Message], adds_prompt: bool = False, **more: Any) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=adds_prompt, **self._special, **more)
        except self._error as e:
            raise InvalidError(f"the chat template refuses a conversation: {e}") from e

    def turns(self, messages: Sequence[Message], **more: Any) -> list[str]:
        """A conversation's text in pieces: the second, the fourth, ... are the assistant's, which have a loss.

        Where the template has {% generation %} its blocks are. Else they are what each message of the assistant adds to the messages before
        it and the prompt of its answer. `more` goes to the template (tools, documents, enable_thinking)."""
        text = self._render(messages, **more)
        if self._marks:
            pieces = [part for begun in text.split(_BEGIN) for part in begun.split(_END)]
            return pieces if len(pieces) % 2 == 0 or pieces[-1] else pieces[:-1]
        pieces, at = [], 0
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before, after = self._render(messages[:i], True, **more), self._render(messages[:i + 1], **more)
            if not (text.startswith(before) and text.startswith(after) and at <= len(before) <= len(after)):
                raise InvalidError(f"the chat template renders message {i} otherwise when messages follow, so its text is not known; use a template "
                                   "with {% generation %} blocks")
            pieces += [text[at:len(before)], text[len(before):len(after)]]
            at = len(after)
        return pieces + [text[at:]] if at < len(text) else pieces


_BEGIN, _END = "\ue0b1\ufdd0", "\ue0b1\ufdd1"  # no text has these noncharacters


def _conversations(paths: Iterable[str], field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as e:
                    raise InvalidError(f"{path}:{number}: no valid JSON: {e}") from e
                if not isinstance(row, dict) or not isinstance(row.get(field), list):
                    raise InvalidError(f"{path}:{number}: an object with an array \"{field}\" is expected; name the field: field=...")
                yield f"{path}:{number}", row


def render_chat(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], tokenizer: str | os.PathLike[str],
                destination: str | os.PathLike[str], *, field: str = "messages", template: str | None = None, **more: Any) -> int:
    """Renders JSON lines with `messages` (role, content, ...) through the chat template of a tokenizer's directory, into JSON lines with
    `turns`, for perdure data pack --turns=turns. Returns how many conversations. "tools" of a line goes to the template too."""
    paths = [os.fspath(source)] if isinstance(source, (str, os.PathLike)) else [os.fspath(path) for path in source]
    renderer, count = Template(tokenizer, template), 0
    target = os.fspath(destination)
    try:
        with open(target + ".rendering", "w", encoding="utf-8") as out:
            for place, row in _conversations(paths, field):
                try:
                    turns = renderer.turns(row[field], **{"tools": row["tools"], **more} if "tools" in row else more)
                except InvalidError as e:
                    raise InvalidError(f"{place}: {e}") from e
                out.write(json.dumps({"turns": turns}, ensure_ascii=False) + "\n")
                count += 1
        os.replace(target + ".rendering", target)
    finally:
        if os.path.exists(target + ".rendering"):
            os.unlink(target + ".rendering")
    return count
