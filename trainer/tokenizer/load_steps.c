#include "ckpt/base/json.h"
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/unicode.h"

/* GPT-2's words (Radford et al. 2019, encoder.py). */
#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- members ---- */

const struct pd_json_value *pd_load_member(const struct pd_json_value *object, const char *key)
{
    const struct pd_json_value *value = pd_json_member(object, key);
    return value && pd_json_type(value) != PD_JSON_NULL ? value : NULL;
}

pd_status pd_load_text(const struct pd_loader *l, const struct pd_json_value *object, const char *path, const char *key,
                       const char **ret_text, struct pd_error *err)
{
    const struct pd_json_value *value = pd_load_member(object, key);
    const char *text = value ? pd_json_text(value) : NULL;
    if (!text) PD_FAIL(err, PD_CORRUPT, "%s: %s.%s is %s", l->name, path, key, value ? "no string" : "missing");
    *ret_text = text;
    return PD_OK;
}

pd_status pd_load_bool(const struct pd_loader *l, const struct pd_json_value *object, const char *path, const char *key,
                       bool fallback, bool *ret_value, struct pd_error *err)
{
    const struct pd_json_value *value = pd_load_member(object, key);
    *ret_value = fallback;
    if (value && !pd_json_is_bool(value, ret_value))
        PD_FAIL(err, PD_CORRUPT, "%s: %s.%s is neither true nor false", l->name, path, key);
    return PD_OK;
}

static pd_status load_matcher(const struct pd_loader *l, const struct pd_json_value *object, const char *path,
                              struct pd_matcher *ret_matcher, struct pd_error *err)
{
    const struct pd_json_value *pattern = pd_load_member(object, "pattern");
    const struct pd_json_value *literal = pattern ? pd_load_member(pattern, "String") : NULL;
    const struct pd_json_value *regex = pattern ? pd_load_member(pattern, "Regex") : NULL;
    const struct pd_json_value *given = literal ? literal : regex;
    if (!given || !pd_json_text(given))
        PD_FAIL(err, PD_CORRUPT, "%s: %s.pattern is neither {\"String\": ...} nor {\"Regex\": ...}", l->name, path);
    pd_status status = pd_matcher_init(literal ? PD_MATCH_LITERAL : PD_MATCH_REGEX, pd_json_text(given), ret_matcher, err);
    return status ? pd_error_context(err, status, "%s: %s.pattern", l->name, path) : PD_OK;
}

pd_status pd_load_content(const struct pd_loader *l, const struct pd_json_value *object, const char *path, const char *key,
                          char **ret_content, struct pd_error *err)
{
    const char *text;
    PD_TRY(pd_load_text(l, object, path, key, &text, err));
    if (strlen(text) > PD_LOAD_CONTENT_MAX)
        PD_FAIL(err, PD_INVALID, "%s: %s.%s is longer than %u bytes", l->name, path, key, PD_LOAD_CONTENT_MAX);
    *ret_content = strdup(text);
    if (!*ret_content) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory", l->name);
    return PD_OK;
}

/* ---- sequences ---- */

pd_status pd_load_steps(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                        const struct pd_load_kind *kind, unsigned depth, struct pd_error *err)
{
    const char *type;
    char inner[PD_LOAD_PATH_MAX];
    if (depth > PD_LOAD_DEPTH_MAX) PD_FAIL(err, PD_CORRUPT, "%s: %s is nested too deep", l->name, path);
    if (pd_json_type(value) != PD_JSON_OBJECT) PD_FAIL(err, PD_CORRUPT, "%s: %s is not an object", l->name, path);
    PD_TRY(pd_load_text(l, value, path, "type", &type, err));
    if (strcmp(type, "Sequence") != 0) return kind->load(l, value, path, type, err);
    const struct pd_json_value *list = pd_load_member(value, kind->list);
    if (!list || pd_json_type(list) != PD_JSON_ARRAY)
        PD_FAIL(err, PD_CORRUPT, "%s: %s.%s is not a list", l->name, path, kind->list);
    for (size_t i = 0; i < pd_json_count(list); i++) {
        snprintf(inner, sizeof inner, "%s.%s[%zu]", path, kind->list, i);
        PD_TRY(pd_load_steps(l, pd_json_at(list, i), inner, kind, depth + 1, err));
    }
    return PD_OK;
}

/* The index of `text` among names (count); names[count] NULL ends them. -1: none of them. */
static int index_of(const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text)) return i;
    return -1;
}

static pd_status refuse(const struct pd_loader *l, const char *path, const char *type, const char *known,
                        struct pd_error *err)
{
    PD_FAIL(err, PD_UNSUPPORTED, "%s: %s: %.40s is not supported; known are %s", l->name, path, type, known);
}

/* Loads one character as a literal matcher. */
static pd_status load_mark(const struct pd_loader *l, const struct pd_json_value *value, const char *path, const char *key,
                           struct pd_matcher *ret_matcher, struct pd_error *err)
{
    const char *text;
    unsigned length;
    PD_TRY(pd_load_text(l, value, path, key, &text, err));
    if (!*text || (pd_unicode_at(text, &length), text[length]))
        PD_FAIL(err, PD_CORRUPT, "%s: %s.%s is not one character", l->name, path, key);
    return pd_matcher_init(PD_MATCH_LITERAL, text, ret_matcher, err);
}

static pd_status load_check_capacity(const struct pd_loader *l, uint32_t count, const char *path, struct pd_error *err)
{
    if (count == PD_STEPS_MAX) PD_FAIL(err, PD_INVALID, "%s: %s: more than %u steps", l->name, path, PD_STEPS_MAX);
    return PD_OK;
}

/* ---- normalizers ---- */

static pd_status load_normalizer(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                 const char *type, struct pd_error *err)
{
    static const char *const names[] = {"NFC", "NFKC", "Lowercase", "Prepend", "Replace", "Strip", NULL};
    struct pd_normalizer *normalizer = &l->tokenizer->normalizer;
    const int kind = index_of(type, names);
    if (kind < 0) return refuse(l, path, type, "NFC, NFKC, Lowercase, Prepend, Replace, Strip and Sequence", err);
    PD_TRY(load_check_capacity(l, normalizer->count, path, err));
    struct pd_normalizer_step *step = &normalizer->steps[normalizer->count++];
    *step = (struct pd_normalizer_step){.kind = (enum pd_normalizer_kind)kind};
    switch (step->kind) {
    case PD_NORMALIZE_PREPEND:
        return pd_load_content(l, value, path, "prepend", &step->content, err);
    case PD_NORMALIZE_REPLACE:
        PD_TRY(load_matcher(l, value, path, &step->matcher, err));
        return pd_load_content(l, value, path, "content", &step->content, err);
    case PD_NORMALIZE_STRIP:
        PD_TRY(pd_load_bool(l, value, path, "strip_left", false, &step->strip_left, err));
        return pd_load_bool(l, value, path, "strip_right", false, &step->strip_right, err);
    default:
        return PD_OK;
    }
}

const struct pd_load_kind pd_load_normalizers = {"normalizers", load_normalizer};

/* ---- pre-tokenizers ---- */

pd_status pd_load_byte_level(struct pd_splitter *splitter, bool splits, bool prefix, struct pd_error *err)
{
    struct pd_split_step *step = &splitter->steps[splitter->count];
    *step = (struct pd_split_step){.kind = PD_SPLIT_BYTE_LEVEL, .splits = splits, .behavior = PD_SPLIT_ISOLATED};
    step->prepend = prefix ? PD_PREPEND_ALWAYS : PD_PREPEND_NEVER;
    splitter->count++;
    return splits ? pd_matcher_init(PD_MATCH_REGEX, GPT2_WORDS, &step->matcher, err) : PD_OK;
}

static pd_status load_byte_level(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                 struct pd_error *err)
{
    bool prefix, splits;
    PD_TRY(pd_load_bool(l, value, path, "add_prefix_space", true, &prefix, err));
    PD_TRY(pd_load_bool(l, value, path, "use_regex", true, &splits, err));
    return pd_load_byte_level(&l->tokenizer->splitter, splits, prefix, err);
}

static pd_status load_behavior(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                               struct pd_split_step *step, struct pd_error *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", NULL};
    const char *behavior;
    PD_TRY(pd_load_text(l, value, path, "behavior", &behavior, err));
    const int index = index_of(behavior, names);
    if (index < 0) PD_FAIL(err, PD_UNSUPPORTED, "%s: %s.behavior %.40s is not known", l->name, path, behavior);
    step->behavior = (enum pd_split_behavior)index;
    return PD_OK;
}

static pd_status load_split(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                            struct pd_split_step *step, struct pd_error *err)
{
    PD_TRY(load_matcher(l, value, path, &step->matcher, err));
    PD_TRY(pd_load_bool(l, value, path, "invert", false, &step->invert, err));
    return load_behavior(l, value, path, step, err);
}

static pd_status load_digits(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                             struct pd_split_step *step, struct pd_error *err)
{
    bool individual;
    PD_TRY(pd_load_bool(l, value, path, "individual_digits", false, &individual, err));
    step->behavior = individual ? PD_SPLIT_ISOLATED : PD_SPLIT_CONTIGUOUS;
    return pd_matcher_init(PD_MATCH_NUMERIC, "", &step->matcher, err);
}

/* ASCII and Unicode 8 (category P): `tokenizers`, pre_tokenizers/punctuation.rs. Two have since become symbols, and the
 * ranges include later assignments. */
#define PUNCTUATION                                                                                             \
    "(?![\\x{61d}\\x{9fd}-\\x{a76}\\x{c77}-\\x{c84}\\x{1b4e}-\\x{1b4f}\\x{1b7d}-\\x{1b7f}\\x{2e43}-\\x{2e5d}"   \
    "\\x{10d6e}-\\x{10f89}\\x{113d4}-\\x{113d8}\\x{1144b}-\\x{1145d}\\x{11660}-\\x{116b9}\\x{1183b}-\\x{11fff}" \
    "\\x{12ff1}-\\x{12ff2}\\x{16d6d}-\\x{16fe2}\\x{1e5ff}\\x{1e95e}-\\x{1e95f}])[\\p{P}$+<=>^`|~\\x{166d}\\x{111c9}]"

static pd_status load_punctuation(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                  struct pd_split_step *step, struct pd_error *err)
{
    step->behavior = PD_SPLIT_ISOLATED;
    if (pd_json_member(value, "behavior")) PD_TRY(load_behavior(l, value, path, step, err));
    return pd_matcher_init(PD_MATCH_REGEX, PUNCTUATION, &step->matcher, err);
}

static pd_status load_metaspace(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                struct pd_split_step *step, struct pd_error *err)
{
    static const char *const names[] = {"always", "first", "never", NULL};
    const struct pd_json_value *given = pd_json_member(value, "prepend_scheme");
    const char *scheme = given ? pd_json_text(given) : "always";
    const int index = scheme ? index_of(scheme, names) : -1;
    bool prefix;
    if (index < 0) PD_FAIL(err, PD_CORRUPT, "%s: %s.prepend_scheme is not always, first or never", l->name, path);
    PD_TRY(load_mark(l, value, path, "replacement", &step->matcher, err));
    PD_TRY(pd_load_bool(l, value, path, "split", true, &step->splits, err));
    PD_TRY(pd_load_bool(l, value, path, "add_prefix_space", true, &prefix, err));
    step->prepend = (enum pd_prepend_scheme)index;
    if (!prefix && given && step->prepend != PD_PREPEND_NEVER)
        PD_FAIL(err, PD_CORRUPT, "%s: %s.add_prefix_space contradicts prepend_scheme", l->name, path);
    if (!prefix) step->prepend = PD_PREPEND_NEVER;
    step->behavior = PD_SPLIT_MERGED_WITH_NEXT;
    return PD_OK;
}

static pd_status load_whitespace(struct pd_split_step *step, struct pd_error *err)
{
    step->invert = true;
    step->behavior = PD_SPLIT_REMOVED;
    return pd_matcher_init(PD_MATCH_WORDS, "", &step->matcher, err);
}

static pd_status load_splitter(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                               const char *type, struct pd_error *err)
{
    static const char *const names[] = {"ByteLevel", "Split", "Digits", "Metaspace", "Punctuation", "Whitespace", NULL};
    static const enum pd_split_kind kinds[] = {PD_SPLIT_BYTE_LEVEL, PD_SPLIT_MATCHES, PD_SPLIT_MATCHES,
                                               PD_SPLIT_METASPACE,  PD_SPLIT_MATCHES, PD_SPLIT_MATCHES};
    struct pd_splitter *splitter = &l->tokenizer->splitter;
    const int index = index_of(type, names);
    if (index < 0)
        return refuse(l, path, type, "ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace and Sequence", err);
    PD_TRY(load_check_capacity(l, splitter->count, path, err));
    if (pd_tokenizer_is_byte_level(l->tokenizer))
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %s: %s behind ByteLevel is not supported; ByteLevel comes last", l->name, path,
                type);
    if (index == 0) return load_byte_level(l, value, path, err);
    struct pd_split_step *step = &splitter->steps[splitter->count++];
    *step = (struct pd_split_step){.kind = kinds[index]};
    switch (index) {
    case 1:
        return load_split(l, value, path, step, err);
    case 2:
        return load_digits(l, value, path, step, err);
    case 3:
        return load_metaspace(l, value, path, step, err);
    case 4:
        return load_punctuation(l, value, path, step, err);
    default:
        return load_whitespace(step, err);
    }
}

const struct pd_load_kind pd_load_splitters = {"pretokenizers", load_splitter};

/* ---- decoders ---- */

static pd_status load_strip(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                            struct pd_decoder_step *step, struct pd_error *err)
{
    const struct pd_json_value *start = pd_json_member(value, "start"), *stop = pd_json_member(value, "stop");
    uint64_t from = 0, to = 0;
    if (!start || !stop || !pd_json_is_u64(start, &from) || !pd_json_is_u64(stop, &to) || from > UINT32_MAX ||
        to > UINT32_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s: %s.start and .stop are numbers of characters", l->name, path);
    step->start = (uint32_t)from;
    step->stop = (uint32_t)to;
    return load_mark(l, value, path, "content", &step->matcher, err);
}

static pd_status load_decoder_metaspace(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                        struct pd_decoder_step *step, struct pd_error *err)
{
    struct pd_split_step split = {0};
    pd_status status = load_metaspace(l, value, path, &split, err);
    step->matcher = split.matcher;
    step->keeps_first = split.prepend == PD_PREPEND_NEVER;
    return status;
}

static pd_status load_decoder(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                              const char *type, struct pd_error *err)
{
    static const char *const names[] = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", NULL};
    struct pd_decoder *decoder = &l->tokenizer->decoder;
    const int kind = index_of(type, names);
    if (kind < 0) return refuse(l, path, type, "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence", err);
    PD_TRY(load_check_capacity(l, decoder->count, path, err));
    struct pd_decoder_step *step = &decoder->steps[decoder->count++];
    *step = (struct pd_decoder_step){.kind = (enum pd_decoder_kind)kind};
    switch (step->kind) {
    case PD_DECODE_REPLACE:
        PD_TRY(load_matcher(l, value, path, &step->matcher, err));
        return pd_load_content(l, value, path, "content", &step->content, err);
    case PD_DECODE_STRIP:
        return load_strip(l, value, path, step, err);
    case PD_DECODE_METASPACE:
        return load_decoder_metaspace(l, value, path, step, err);
    default:
        return PD_OK;
    }
}

const struct pd_load_kind pd_load_decoders = {"decoders", load_decoder};
