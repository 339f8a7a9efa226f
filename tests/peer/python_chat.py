#!/usr/bin/env python3
"""Labels of conversations: perdure.render_chat and data pack --turns mark the tokens that transformers marks, token by token.

usage: python_chat.py SOURCE PERDURE

PERDURE_LIBRARY is libperdure.so. PERDURE_PEER_PYTHON names an interpreter that has transformers, Jinja2 and NumPy. Exit 77: there is none.
PERDURE_TEST_SEED replays a seed."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
try:
    import jinja2  # noqa: F401
    import numpy
    from transformers import PreTrainedTokenizerFast
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has transformers, Jinja2 and NumPy", file=sys.stderr)
    sys.exit(77)

SOURCE, PERDURE = (os.path.abspath(path) for path in sys.argv[1:3])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
import perdure  # noqa: E402
from perdure.chat import Template  # noqa: E402

CONVERSATIONS = 1000
SEED = int(os.environ.get("PERDURE_TEST_SEED") or os.environ.get("PERDURE_TEST_SHARE", "0"))
WORDS = ["Hello", " world", "é", "ü", "日本語", "🙂", "👩‍👩‍👧", "\n", "\n\n", "  ", "\t", "1234", "don't", "<|im_end|>", "<s>", "{%", "\"", "\\", "x=1;", ".", "İ", "ﬁ", "a\u0301"]
# With blocks, as transformers wants them for its masks; the same without them; and a template that numbers its turns and strips their texts.
BLOCKS = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
          "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
HEADERS = ("{{ bos_token }}{%- for message in messages %}\n    {%- if message.role == 'assistant' %}\n[{{ loop.index }}]{% generation %}"
           "{{ message.content | trim }} [end]{% endgeneration %}\n    {%- else %}\n[{{ message.role | upper }}] {{ message.content | trim }}\n"
           "    {%- endif %}\n{%- endfor %}")
PLAIN = BLOCKS.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def conversation(draw):
    """Turns of any text, a system's before them or not, ended by anybody."""
    def text():
        return "".join(draw.choice(WORDS) for _ in range(draw.randrange(6)))
    messages = [{"role": "system", "content": text()}] if draw.random() < 0.3 else []
    for i in range(draw.randrange(1, 6)):
        messages.append({"role": "assistant" if i % 2 else "user", "content": text()})
    return messages


def ours(folder, name, template, rows, tokenizer):
    """[(tokens, labels)] of the conversations, out of a token file."""
    source, turns, packed = (os.path.join(folder, f"{name}.{end}") for end in ("jsonl", "turns.jsonl", "bin"))
    with open(source, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps({"messages": row}) + "\n")
    assert perdure.render_chat(source, tokenizer, turns, template=template) == len(rows)
    said = json.loads(subprocess.run([PERDURE, "data", "pack", f"--tokenizer={tokenizer}", "--turns=turns", "--format=megatron", "--json", "--overwrite",
                                      f"--output={packed}", turns], stdout=subprocess.PIPE, check=True).stdout)
    with open(packed[:-4] + ".idx", "rb") as f:
        index = f.read()
    count = int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, "<i4", count, 34)
    types = {"u8": "u1", "u16": "<u2", "i32": "<i4"}
    tokens = numpy.fromfile(packed, types[said["type"]]).astype(int)
    with open(packed + ".loss", "rb") as f:
        marks = f.read()
    assert marks[:8] == b"PDLOSS1\n" and int.from_bytes(marks[8:16], "little") == len(tokens)
    learned = numpy.unpackbits(numpy.frombuffer(marks[16:], "u1"), bitorder="little")[:len(tokens)]
    assert learned.sum() == said["learned"]
    ends = numpy.cumsum(lengths)
    return [(tokens[end - length:end].tolist(), learned[end - length:end].tolist()) for end, length in zip(ends, lengths)]


def check(folder, name, tokenizer, template, theirs_template, rows):
    with open(os.path.join(tokenizer, "tokenizer.json"), encoding="utf-8") as f:
        bos = json.load(f)["added_tokens"][0]["content"]
    fast = PreTrainedTokenizerFast(tokenizer_file=os.path.join(tokenizer, "tokenizer.json"), bos_token=bos)
    with open(os.path.join(tokenizer, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"bos_token": {"content": bos}}, f)
    found = ours(folder, name, template, rows, tokenizer)
    assert len(found) == len(rows), (len(found), len(rows))
    for row, (tokens, labels) in zip(rows, found):
        want = fast.apply_chat_template(row, chat_template=theirs_template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert tokens == want["input_ids"], f"{name}, seed {SEED}: {row}: tokens {tokens}, transformers has {want['input_ids']}"
        assert labels == want["assistant_masks"], f"{name}, seed {SEED}: {row}: labels {labels}, transformers has {want['assistant_masks']} of {tokens}"


def place(folder, name):
    """A golden tokenizer in a directory of its own."""
    tokenizer = os.path.join(folder, name)
    os.mkdir(tokenizer)
    shutil.copy(os.path.join(SOURCE, "tests", "golden", "tokenizers", f"{name}.json"), os.path.join(tokenizer, "tokenizer.json"))
    return tokenizer


def check_refused(folder, tokenizer):
    """What cannot be known is refused by name."""
    turns = os.path.join(folder, "capital.jsonl")
    with open(turns, "w", encoding="utf-8") as f:
        f.write('{"turns": ["Capital", "letters"]}')
    said = subprocess.run([PERDURE, "data", "pack", f"--tokenizer={place(folder, 'metaspace')}", "--turns=turns", f"--output={turns}.bin", turns],
                          capture_output=True, text=True, check=False)
    assert said.returncode == 78 and "changes text before it cuts it" in said.stderr, said
    for what, template, messages in (("renders message 1 otherwise", PLAIN.replace("{{ '\n' }}{% endfor %}", "{{ loop.last }}{% endfor %}"),
                                      [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]),
                                     ("no tools here", "{{ raise_exception('no tools here') }}", [])):
        try:
            Template(tokenizer, template).turns(messages)
        except perdure.InvalidError as e:
            assert what in str(e), e
        else:
            raise AssertionError(what)
    try:
        Template(folder)
    except perdure.NotFoundError as e:
        assert "has no chat template" in str(e), e
    else:
        raise AssertionError("a directory without a template")
    path = os.path.join(folder, "bad.jsonl")
    for line, what in (("{", "no valid JSON"), ('{"text": []}', 'an array "messages"')):
        with open(path, "w", encoding="utf-8") as f:
            f.write(line)
        try:
            perdure.render_chat(path, tokenizer, os.path.join(folder, "never"), template=PLAIN)
        except perdure.InvalidError as e:
            assert f"{path}:1: " in str(e) and what in str(e), e
        else:
            raise AssertionError(line)
    assert not [name for name in os.listdir(folder) if name.startswith("never")]


def main():
    draw = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="perdure-chat-") as folder:
        for name in ("gpt2", "llama3", "qwen2", "sentencepiece"):
            tokenizer = place(folder, name)
            rows = [conversation(draw) for _ in range(CONVERSATIONS // 4)]
            for template, theirs in ((BLOCKS, BLOCKS), (PLAIN, BLOCKS.replace("{% endgeneration %}{% else %}", "{{ '\n' }}{% endgeneration %}{% else %}{{ '' }}")
                                                        .replace("{{ '\n' }}{% endfor %}", "{% if message['role'] != 'assistant' %}{{ '\n' }}{% endif %}{% endfor %}")),
                                     (HEADERS, HEADERS)):
                check(folder, name, tokenizer, template, theirs, rows)
        check_refused(folder, tokenizer)
    print(f"{CONVERSATIONS} conversations, 3 templates: the tokens and labels of transformers")


main()
