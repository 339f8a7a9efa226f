/* Reads and writes one key of the configuration by name. */
#include "ckpt/base/log.h"
#include "ckpt/base/nearest.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/utf8.h"
#include "trainer/config/keys.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- renamed keys ---- */

#define GRADIENTS "no longer exists, since gradients are added up in fp32 and travel as integers; leave it out"
#define STRIPES                                                                                                           \
    "no longer exists: leave it out; to use several drives, join them into one RAID-0 with mdadm and put checkpoint.dir " \
    "there"

#define PROMETHEUS \
    "no longer exists; let Prometheus read metrics.prometheus_listen, or save it: curl HOST:PORT/metrics > DIR/run.prom"

/* Keep a row as long as checkpoints with its name may exist. */
static const struct pd_renamed rows[] = {
    {"restart.peer_timeout", NULL, "restart.begin_seconds", NULL, true},
    {"batch.leaf", NULL, "batch.micro_batch", NULL, false},
    {"layout.host_ranks", NULL, "layout.ranks_per_host", NULL, false},
    {"layout.order", "leaves", "depth_first", NULL, false},
    {"layout.order", "layers", "breadth_first", NULL, false},
    {"layout.fp8_codes", "leaf", "micro_batch", NULL, false},
    {"checkpoint.compression", "auto", "zstd:1", "no longer exists; write none, or zstd:1 to compress", false},
    {"checkpoint.tiers[].compression", "auto", "zstd:1", "no longer exists; write none, or zstd:1 to compress", false},
    {"checkpoint.tiers[].copies", NULL, "checkpoint.tiers[].replicas", NULL, false},
    {"numerics.gradient_type", NULL, NULL, GRADIENTS, false},
    {"numerics.gradient_rounding", NULL, NULL, GRADIENTS, false},
    {"checkpoint.stripes", NULL, NULL, STRIPES, false},
    {"checkpoint.stripe_weights", NULL, NULL, STRIPES, false},
    {"metrics.prometheus_file", NULL, NULL, PROMETHEUS, false},
    {"layout.tensor_exchange", NULL, NULL, "no longer exists: exchanges are of a micro-batch at once; leave it out", false},
    {"layout.schedule", NULL, NULL, "no longer exists, since 1F1B has gpipe's bubble in less memory; leave it out", false},
};

/* Equal, with "[]" for any index. */
static bool matches(const char *key, const char *path)
{
    const char *open = strchr(path, '[');
    if (!open) return strcmp(key, path) == 0;
    const size_t length = (size_t)(open - path);
    const char *rest = strchr(open, ']');
    return rest && strncmp(key, path, length) == 0 && key[length] == '[' && strcmp(key + length + 1, rest) == 0;
}

const struct pd_renamed *pd_renamed_find(const char *path, const char *value)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (matches(rows[i].key, path) && (!rows[i].value || (value && strcmp(rows[i].value, value) == 0))) return &rows[i];
    return NULL;
}

void pd_renamed_path(const struct pd_renamed *row, const char *path, char *ret, size_t bytes)
{
    const char *hole = strstr(row->now, "[]"), *index = strchr(path, '[');
    if (hole && index)
        snprintf(ret, bytes, "%.*s%.*s%s", (int)(hole - row->now), row->now, (int)strcspn(index, "]"), index, hole + 1);
    else
        snprintf(ret, bytes, "%s", row->now);
}

/* Refuses an old name in user input and names the new one. errors PD_INVALID */
static pd_status renamed_refuse(const char *path, const char *value, struct pd_error *err)
{
    const struct pd_renamed *row = pd_renamed_find(path, value);
    char now[256] = "", said[320] = "no longer exists; leave it out";
    if (!row) return PD_OK;
    if (row->now) pd_renamed_path(row, path, now, sizeof now);
    if (row->now) snprintf(said, sizeof said, "is now called %s", now);
    if (row->value) PD_FAIL(err, PD_INVALID, "%s: %s %s", path, value, row->said ? row->said : said);
    PD_FAIL(err, PD_INVALID, "unknown key %s: it %s", path, row->said ? row->said : said);
}

/* ---- one key from text and back ---- */

/* A parsed path: data.train[3].path has name, index and member. */
struct place {
    char name[96], member[32];
    bool has_index, well_formed;
    uint64_t index;
};

static struct place set_place_of(const char *path)
{
    struct place p = {.well_formed = true};
    const char *open = strchr(path, '[');
    snprintf(p.name, sizeof p.name, "%.*s", (int)(open ? open - path : (ptrdiff_t)strlen(path)), path);
    if (!open) return p;
    const char *close = strchr(open, ']');
    char digits[16];
    if (!close || close == open + 1 || close - open > 12) {
        p.well_formed = false;
        return p;
    }
    snprintf(digits, sizeof digits, "%.*s", (int)(close - open - 1), open + 1);
    p.has_index = true;
    p.well_formed = pd_parse_u64(digits, &p.index) && (close[1] == '\0' || close[1] == '.');
    snprintf(p.member, sizeof p.member, "%s", close[1] == '.' ? close + 2 : "");
    return p;
}

const struct pd_key *pd_key_of_path(const char *path)
{
    return pd_key_find(set_place_of(path).name);
}

const struct pd_key *pd_key_find(const char *name)
{
    for (uint32_t i = 0; i < pd_key_count; i++)
        if (strcmp(pd_keys[i].name, name) == 0) return &pd_keys[i];
    return NULL;
}

static void *member_of(void *base, size_t offset)
{
    return (char *)base + offset;
}

static pd_status replace_string(char **target, const char *text, struct pd_error *err)
{
    for (const char *at = text; *at;)
        if (pd_utf8_next(&at) == UINT32_MAX)
            PD_FAIL(err, PD_INVALID, "byte %td is not UTF-8, which a YAML text must be; rename the file", at - text);
    const char *home = text[0] == '~' && (!text[1] || text[1] == '/') ? getenv("HOME") : NULL; /* no shell has expanded it */
    char *copy = NULL;
    if (asprintf(&copy, "%s%s", home ? home : "", home ? text + 1 : text) < 0)
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a string of the configuration");
    free(*target);
    *target = copy;
    return PD_OK;
}

/* hint: where the word belongs, or NULL. */
static pd_status set_word(int *target, const char *const *words, const char *text, const char *hint, struct pd_error *err)
{
    char list[160] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], text) == 0) {
            *target = i;
            return PD_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    }
    PD_FAIL(err, PD_INVALID, "expected %s, found \"%s\"%s", list, text, hint ? hint : "");
}

/* 8-bit formats are never a type of activations. */
static const char *word_hint(const struct pd_key *key, const char *text)
{
    const bool is_fp8 = !strcmp(key->name, "numerics.precision") && !strncmp(text, "fp8", 3);
    return is_fp8 ? "; linears of blocks are in fp8 by numerics.linears=fp8" : NULL;
}

static void number_text(double value, char *ret, size_t bytes)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(ret, bytes, "%.*g", digits, value);
        if (strtod(ret, NULL) == value) return;
    }
}

static pd_status check_range(const struct pd_key *key, double value, const char *text, struct pd_error *err)
{
    bool low_fits = key->low_open ? value > key->low : value >= key->low;
    bool high_fits = key->high_open ? value < key->high : value <= key->high;
    if (low_fits && high_fits) return PD_OK;
    char low[32], high[32];
    number_text(key->low, low, sizeof low);
    number_text(key->high, high, sizeof high);
    PD_FAIL(err, PD_INVALID, "expected a number %s %s and %s %s, found %s", key->low_open ? "above" : "of at least", low,
            key->high_open ? "under" : "at most", high, text);
}

/* Digits; with a suffix type also a fraction, an exponent, or one of k, M and G. NAN: not a number. */
static long double set_number_of(const char *text, enum pd_key_suffix suffix)
{
    static const char letters[] = "kmg";
    char *end;
    const size_t length = strspn(text, suffix ? "-0123456789.eE" : "-0123456789");
    const long double value = strtold(text, &end);
    const char *letter = *end && suffix ? strchr(letters, *end | 0x20) : NULL;
    if (!length || end != text + length || (*end && (!letter || end[1]))) return NAN;
    return letter ? value * powl(suffix == PD_SUFFIX_SIZE ? 1024 : 1000, (long double)(letter - letters + 1)) : value;
}

static pd_status set_whole(void *base, const struct pd_key *key, const char *text, struct pd_error *err)
{
    static const char *const such[] = {
        [PD_SUFFIX_COUNT] = ", such as 500, 10k or 1e4", [PD_SUFFIX_SIZE] = ", such as 4096, 8k or 2G"};
    void *member = member_of(base, key->offset);
    const long double value = set_number_of(text, key->suffix);
    if (!isnan(value)) PD_TRY(check_range(key, (double)value, text, err));
    if (isnan(value) || value != floorl(value))
        PD_FAIL(err, PD_INVALID, "expected a whole number%s, found \"%s\"", such[key->suffix] ? such[key->suffix] : "",
                text);
    if (key->type == PD_KEY_U32)
        *(uint32_t *)member = (uint32_t)value;
    else if (key->type == PD_KEY_U64)
        *(uint64_t *)member = (uint64_t)value;
    else
        *(int64_t *)member = (int64_t)value;
    return PD_OK;
}

static pd_status set_real(void *base, const struct pd_key *key, const char *text, struct pd_error *err)
{
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || strspn(text, "+-0123456789.eE") != strlen(text))
        PD_FAIL(err, PD_INVALID, "expected a number, found \"%s\"", text);
    PD_TRY(check_range(key, value, text, err));
    if (key->type == PD_KEY_FLOAT)
        *(float *)member_of(base, key->offset) = (float)value;
    else
        *(double *)member_of(base, key->offset) = value;
    return PD_OK;
}

static void set_automatic(void *base, const struct pd_key *key)
{
    void *member = member_of(base, key->offset);
    const bool has_zero = key->initial[0] == 'a'; /* if 0 is a valid value, auto is another */
    if (key->type == PD_KEY_U32)
        *(uint32_t *)member = has_zero ? UINT32_MAX : 0;
    else if (key->type == PD_KEY_U64)
        *(uint64_t *)member = has_zero ? UINT64_MAX : 0;
    else
        *(double *)member = -1;
}

/* A scalar member of any struct: key->offset counts from `base`. */
static pd_status set_member(void *base, const struct pd_key *key, const char *text, struct pd_error *err)
{
    if (key->automatic && strcmp(text, "auto") == 0) {
        set_automatic(base, key);
        return PD_OK;
    }
    switch (key->type) {
    case PD_KEY_STRING:
        return replace_string(member_of(base, key->offset), text, err);
    case PD_KEY_U32:
    case PD_KEY_U64:
    case PD_KEY_I64:
        return set_whole(base, key, text, err);
    case PD_KEY_FLOAT:
    case PD_KEY_DOUBLE:
        return set_real(base, key, text, err);
    case PD_KEY_BOOL:
        bool *target = member_of(base, key->offset);
        static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
        for (int i = 0; i < 4; i++) {
            if (strcasecmp(text, yes[i]) != 0 && strcasecmp(text, no[i]) != 0) continue;
            *target = strcasecmp(text, yes[i]) == 0;
            return PD_OK;
        }
        PD_FAIL(err, PD_INVALID, "expected true or false, found \"%s\"", text);
    default:
        return set_word(member_of(base, key->offset), key->words, text, word_hint(key, text), err);
    }
}

/* ---- lists ---- */

void pd_key_clear_list(struct pd_config *config, const struct pd_key *key)
{
    uint32_t *count = member_of(config, key->count_offset);
    char **items = member_of(config, key->offset);
    for (uint32_t i = 0; i < *count; i++)
        for (uint32_t m = 0; m < key->list->member_count; m++)
            if (key->list->members[m].type == PD_KEY_STRING)
                free(*(char **)(*items + i * key->list->bytes + key->list->members[m].offset));
    free(*items);
    *items = NULL;
    *count = 0;
}

/* Element `index` of a list: an existing one, or the next. */
static pd_status reach(struct pd_config *config, const struct pd_key *key, uint64_t index, void **ret_item,
                       struct pd_error *err)
{
    const struct pd_key_list *list = key->list;
    uint32_t *count = member_of(config, key->count_offset);
    char **items = member_of(config, key->offset);
    if (index > *count)
        PD_FAIL(err, PD_INVALID, "element %" PRIu64 " of a list that has %u; the next is %s[%u]", index, *count, key->name,
                *count);
    if (index >= list->most) PD_FAIL(err, PD_INVALID, "a list of more than %u elements; name fewer", list->most);
    if (index == *count) {
        char *grown = realloc(*items, (index + 1) * list->bytes);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for a list of the configuration");
        *items = grown;
        memset(grown + index * list->bytes, 0, list->bytes);
        for (uint32_t m = 0; m < list->member_count; m++)
            if (list->members[m].initial) set_automatic(grown + index * list->bytes, &list->members[m]);
        (*count)++;
    }
    *ret_item = *items + index * list->bytes;
    return PD_OK;
}

static pd_status set_element(struct pd_config *config, const struct pd_key *key, uint64_t index, const char *member,
                             const char *text, struct pd_error *err)
{
    const struct pd_key_list *list = key->list;
    const char *names[16];
    for (uint32_t i = 0; i < list->member_count; i++) {
        void *item = NULL;
        names[i] = list->members[i].name;
        if (member[0] ? strcmp(names[i], member) != 0 : i > 0) continue;
        PD_TRY(reach(config, key, index, &item, err));
        return set_member(item, &list->members[i], text, err);
    }
    const char *near = pd_nearest_name(member, names, list->member_count);
    PD_FAIL(err, PD_INVALID, "%s, and has no \"%s\"%s%s%s", list->is, member, near ? "; did you mean " : "",
            near ? near : "", near ? "?" : "");
}

/* Without an index the text is the whole list: one element or none, or numbers, "3,2" or "[3, 2]". */
static pd_status set_list(struct pd_config *config, const struct pd_key *key, const struct place *p, const char *text,
                          struct pd_error *err)
{
    static const char separators[] = ", []";
    if (p->has_index) return set_element(config, key, p->index, p->member, text, err);
    pd_key_clear_list(config, key);
    text += strspn(text, separators);
    for (uint64_t index = 0; *text; text += strspn(text, separators)) {
        const size_t length = key->list->members[0].name[0] ? strlen(text) : strcspn(text, separators);
        char *word = strndup(text, length);
        if (!word) PD_FAIL(err, PD_NO_MEMORY, "no memory for a list of the configuration");
        const pd_status st = set_element(config, key, index++, "", word, err);
        free(word);
        PD_TRY(st);
        text += length;
    }
    return PD_OK;
}

/* The flag that a value was given instead of layout.auto. NULL: no such key. */
static bool *given_of(struct pd_config *config, const struct pd_key *key)
{
    return key->offset == offsetof(struct pd_config, layout.recompute)    ? &config->layout.recompute_given
           : key->offset == offsetof(struct pd_config, layout.zero_stage) ? &config->layout.zero_stage_given
                                                                          : NULL;
}

static pd_status set_scalar(struct pd_config *config, const struct pd_key *key, const char *text, struct pd_error *err)
{
    bool *given = given_of(config, key);
    const bool is_value = strcmp(text, "auto") != 0;
    if (!*text && key->type != PD_KEY_STRING)
        PD_FAIL(err, PD_INVALID, "expected a value, found nothing; leave the key out for its default");
    PD_TRY(set_member(config, key, given && !is_value ? key->initial : text, err));
    if (given) *given = is_value;
    return PD_OK;
}

pd_status pd_key_set(struct pd_config *config, const char *path, const char *text, struct pd_error *err)
{
    if (strcmp(path, "layout") == 0) {
        if (strcmp(text, "auto") != 0)
            PD_FAIL(err, PD_INVALID, "layout: expected auto, or a section with dp, tp, pp and sp; found \"%s\"", text);
        path = "layout.auto", text = "true";
    }
    const struct pd_renamed *renamed = pd_renamed_find(path, text);
    if (renamed && renamed->is_accepted) {
        pd_log_warn("config", "%s is now called %s; the old name still works", path, renamed->now);
        path = renamed->now;
    }
    PD_TRY(renamed_refuse(path, text, err));
    struct place p = set_place_of(path);
    const struct pd_key *key = pd_key_find(p.name);
    const bool is_list = key && key->list;
    if (!key || !p.well_formed || (p.has_index && !is_list)) {
        char suggestion[320];
        if (key && p.well_formed) {
            PD_FAIL(err, PD_INVALID, "%s: %s is one value, not a list", path, key->name);
        } else if (is_list) {
            PD_FAIL(err, PD_INVALID, "%s: an element is written %s[0]", path, key->name);
        }
        pd_key_suggest(path, suggestion, sizeof suggestion);
        PD_FAIL(err, PD_INVALID, "%s", suggestion);
    }
    const pd_status status = is_list ? set_list(config, key, &p, text, err) : set_scalar(config, key, text, err);
    return status ? pd_error_context(err, status, "%s", path) : PD_OK;
}

bool pd_key_is_left(const struct pd_config *config, const struct pd_key *key)
{
    const bool *given = given_of((struct pd_config *)config, key);
    return config->layout.automatic && given && !*given;
}

void pd_key_text(const void *base, const struct pd_key *key, char *ret, size_t bytes)
{
    const void *member = (const char *)base + key->offset;
    switch (key->type) {
    case PD_KEY_STRING:
        snprintf(ret, bytes, "%s", *(char *const *)member ? *(char *const *)member : "");
        break;
    case PD_KEY_U32:
        snprintf(ret, bytes, "%" PRIu32, *(const uint32_t *)member);
        if (key->automatic && *(const uint32_t *)member == UINT32_MAX) snprintf(ret, bytes, "auto");
        break;
    case PD_KEY_U64:
        snprintf(ret, bytes, "%" PRIu64, *(const uint64_t *)member);
        break;
    case PD_KEY_I64:
        snprintf(ret, bytes, "%" PRId64, *(const int64_t *)member);
        break;
    case PD_KEY_FLOAT:
        for (int digits = 6; digits <= 9; digits++) {
            snprintf(ret, bytes, "%.*g", digits, (double)*(const float *)member);
            if ((float)strtod(ret, NULL) == *(const float *)member) break;
        }
        break;
    case PD_KEY_DOUBLE:
        number_text(*(const double *)member, ret, bytes);
        break;
    case PD_KEY_BOOL:
        snprintf(ret, bytes, "%s", *(const bool *)member ? "true" : "false");
        break;
    case PD_KEY_WORD:
        snprintf(ret, bytes, "%s", key->words[*(const int *)member]);
        break;
    default:
        snprintf(ret, bytes, "%u elements", *(const uint32_t *)((const char *)base + key->count_offset));
        break;
    }
}
