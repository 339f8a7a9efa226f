/* Pre-tokenizers that llama.cpp knows by name (llama-vocab.cpp, llm_tokenizer_bpe): expressions that cut a text one after the
 * other, what none of them matches being a piece too. What is not here needs its tokenizer.json. */
#include "trainer/tokenizer/load.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define WORDS(digits)                                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define IDEOGRAPHS "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASES(ending) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ending
#define REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define LETTERS                                                                                            \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-Ⴥ" \
    "Ꭰ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ" \
    "ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨ"   \
    "K-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"  \
    "ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-"    \
    "𞥃]+"

static const struct pd_gguf_pre known[] = {
    {.names = " gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum mpt olmo jais trillion exaone4 ",
     .words = {NULL}},
    {.names = " llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .words = {WORDS("{1,3}|")},
     .ignore_merges = true,
     .adds_bos = true},
    {.names = " dbrx smaug-bpe glm4 chatglm-bpe ", .words = {WORDS("{1,3}|")}},
    {.names = " qwen2 deepseek-r1-qwen megrez ", .words = {WORDS("|")}, .nfc = true},
    {.names = " stablelm2 hunyuan ", .words = {WORDS("|")}},
    {.names = " smollm starcoder refact command-r codeshell exaone minerva-7b ", .words = {"\\p{N}", GPT2}},
    {.names = " falcon ", .words = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = " default ", .words = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = " deepseek-llm ",
     .words = {"[\r\n]", LETTERS, "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$", IDEOGRAPHS,
               "\\p{N}+"}},
    {.names = " deepseek-coder ", .words = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", IDEOGRAPHS, "\\p{N}"}},
    {.names = " deepseek-v3 hunyuan-dense ",
     .words = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
               "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
               "?[\\p{P}\\p{S}]+[\r\n]*"
               "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    {.names = " tekken ", .words = {CASES("") "|\\p{N}|" REST}, .ignore_merges = true, .adds_bos = true},
    {.names = " gpt-4o llama4 ", .words = {CASES(ENDINGS) "|\\p{N}{1,3}|" REST}},
};

const struct pd_gguf_pre *pd_gguf_pre(const char *name)
{
    const size_t bytes = strlen(name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *at = bytes && !strchr(name, ' ') ? known[i].names : NULL;
        for (; at && (at = strstr(at, name)); at++)
            if (at[-1] == ' ' && at[bytes] == ' ') return &known[i];
    }
    return NULL;
}
