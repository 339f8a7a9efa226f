"""Mixed text by seed: English, Chinese, code, emoji, other scripts, spaces of all kinds, special tokens, bytes that are no UTF-8.

mixed_text.py SEED BYTES FILE writes it."""
import random
import sys

ENGLISH = """the of and to a in that is was he for it with as his on be at by i this had not are but from or have an they
which one you were all her she there would their we him been has when who will no more if out so what up said about its into than
them can only other time new some could these two may first then do any like my now over such our man me even most made after also
did many off before must well back through years much where your way down should because long each just state those people too mr
how little good world make very year still see own work men day get here old life both between being under three never know same
last another while us off might great go come since against right came take used himself few house American use place during
without again home around small however found part once upon thought tokenizer checkpoint don't I'm you'll they've we're it's
HTTP JSON GPUs naïve café Zürich résumé""".split()
CHINESE = ("的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天"
           "如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从知全工己间成长机器语言模型")
CODE = ["for (size_t i = 0; i < count; i++) {\n    sum += values[i];\n}\n", "def f(x, *, y=None):\n\treturn {**x, 'k': y}\n",
        "#include <stdio.h>\r\n", "SELECT * FROM t WHERE a >= 10 AND b != 'x';\n", "if __name__ == \"__main__\":\n    main()\n",
        "x->next = (struct node *)malloc(sizeof *x); /* ??? */\n", "<div class=\"a b\">&nbsp;</div>\n", "0x1F3a + 1e-7 % 12345678\n"]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧", "🇨🇭", "❤️", "🚀🚀", "½²³", "①ⅣⅫ", "﷽"]
OTHER = ["Привет, мир! ", "שלום עולם ", "مرحبا بالعالم ", "नमस्ते दुनिया ", "こんにちは、世界。カタカナﾊﾝｶｸ ", "안녕하세요 세계 ", "สวัสดีชาวโลก ",
         "Ωμέγα ", "e\u0301a\u0300 ", "ﬁne ﬀ ", "Ａｂｃ１２３ ", "\u1100\u1161\u11a8 ", "q\u0323\u0307 ", "\u212b\u2126 ", "İstanbul ſ Kelvin\u212a ",
         "\U000323af\U0002ebf0 ", "\u180e\u200b\u200d\ufeff "]
SPACES = [" ", "  ", "   ", "\n", "\n\n", " \n ", "\t", "\r\n", "\u00a0", "\u3000", "\u2009 ", "\x0b\x0c", "\u2028", "          "]
SPECIAL = ["<|endoftext|>", "<s>", "</s>", "  <|pad|>  ", "<|begin_of_text|>", "<unk>", "<0x41>", "x<mask>y", "a mask b", "▁▁", "<|end", "Ġ"]
BROKEN = [b"\xff", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\x80\x80", b"\xe4\xb8a", b"\x00"]


def piece(draw):
    kind = draw.random()
    if kind < 0.45:
        words = [draw.choice(ENGLISH) for _ in range(draw.randrange(3, 14))]
        return (" ".join(words).capitalize() + draw.choice([". ", ", ", "! ", "?\n", "; "])).encode()
    if kind < 0.65:
        # Few characters are frequent, as in any language.
        text = "".join(CHINESE[min(int(draw.expovariate(0.04)), len(CHINESE) - 1)] for _ in range(draw.randrange(4, 30)))
        return (text + draw.choice("。，！？、")).encode()
    if kind < 0.8:
        return draw.choice(CODE).encode()
    if kind < 0.85:
        return str(draw.randrange(10 ** draw.randrange(1, 12))).encode() + b" "
    if kind < 0.9:
        return draw.choice(OTHER).encode()
    if kind < 0.93:
        return draw.choice(EMOJI).encode()
    if kind < 0.97:
        return draw.choice(SPACES).encode()
    if kind < 0.98:
        return draw.choice(SPECIAL).encode()
    if kind < 0.985:
        return bytes(draw.choice([chr(draw.randrange(0x20, 0xd800)), chr(draw.randrange(0xe000, 0x110000))]), "utf-8")
    if kind < 0.99:
        return draw.choice("ab中 \n").encode() * draw.randrange(20, 300)
    return draw.choice(BROKEN)


def mixed_text(seed, size):
    draw = random.Random(seed)
    parts, total = [], 0
    while total < size:
        parts.append(piece(draw))
        total += len(parts[-1])
    return b"".join(parts)[:size]


if __name__ == "__main__":
    with open(sys.argv[3], "wb") as f:
        f.write(mixed_text(int(sys.argv[1]), int(sys.argv[2])))
