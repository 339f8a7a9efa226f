#!/usr/bin/env python3
"""Makes the golden tokenizers and what the `tokenizers` package gives for mixed.txt: NAME.json, NAME.tokens, NAME.decoded.

make.py DIRECTORY; needs tokenizers from PyPI. Files of other versions may differ in formatting and not in tokens."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "helpers"))
from mixed_text import mixed_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = "\u2581"


def train(tokenizer, size, special, alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=list(alphabet), show_progress=False)
    text = mixed_text(7, 1 << 20).replace(b"\0", b"").decode("utf-8", "replace")
    tokenizer.train_from_iterator([text[i:i + 400] for i in range(0, len(text), 400)], trainer)
    return tokenizer


def byte_level(normalizer, pre_tokenizer, special, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, size, special, pre_tokenizers.ByteLevel.alphabet())


def gpt2():
    tokenizer = byte_level(None, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"], 3000)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def words_then_bytes(digits):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS % digits), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3():
    tokenizer = byte_level(None, words_then_bytes("{1,3}"), ["<|begin_of_text|>", "<|endoftext|>"], 4000)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    # Words that no merge makes, as files of that family have.
    data["model"]["vocab"].update({"ĠcheckpointĠx": 4000, "Ġtokeniz": 4001, "thought": data["model"]["vocab"].get("thought", 4002)})
    return Tokenizer.from_str(json.dumps(data))


def qwen2():
    tokenizer = byte_level(normalizers.NFC(), words_then_bytes(""), ["<|endoftext|>"], 3000)
    tokenizer.add_tokens([AddedToken("<|pad|>", lstrip=True, rstrip=True, special=True), AddedToken("mask", single_word=True)])
    return tokenizer


def sentencepiece():
    """As Llama 2: no pre-tokenizer, so a document is one word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train(tokenizer, 3000, ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % byte for byte in range(256)])
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer


def metaspace():
    """Everything else at once: NFKC, lower case, digits, words, marks for the first word alone, unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip(False, True),
                                                 normalizers.Replace(Regex("\n{2,}"), "\n")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(r"[\p{P}\p{S}]+"), "contiguous"), pre_tokenizers.Split("\n", "merged_with_previous")])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    train(tokenizer, 2000, ["<unk>", "<s>"])
    data = json.loads(tokenizer.to_str())
    kept = {text: number for text, number in data["model"]["vocab"].items() if not text.startswith(("ω", "م"))}
    data["model"]["vocab"] = {text: number for number, text in enumerate(kept)}
    data["model"]["merges"] = [pair for pair in data["model"]["merges"]
                               if all(text in kept for text in (*pair, "".join(pair)))]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_tokens([AddedToken("Mask", single_word=True), AddedToken("<|pad|>", lstrip=True, normalized=False)])
    return tokenizer


KINDS = {f.__name__: f for f in (gpt2, llama3, qwen2, sentencepiece, metaspace)}


def main(folder):
    raw = mixed_text(3, 24000)
    with open(os.path.join(folder, "mixed.txt"), "wb") as f:
        f.write(raw)
    for name, make in KINDS.items():
        tokenizer = make()
        path = os.path.join(folder, name)
        with open(path + ".json", "w", encoding="utf-8") as f:
            f.write(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        tokenizer = Tokenizer.from_file(path + ".json")
        ids = tokenizer.encode(raw.decode("utf-8", "replace")).ids
        with open(path + ".tokens", "w", encoding="ascii") as f:
            f.write("\n".join(" ".join(map(str, ids[i:i + 20])) for i in range(0, len(ids), 20)) + "\n")
        with open(path + ".decoded", "w", encoding="utf-8", newline="") as f:
            f.write(tokenizer.decode(ids, skip_special_tokens=False))
        print(name, tokenizer.get_vocab_size(), len(ids), os.path.getsize(path + ".json"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
