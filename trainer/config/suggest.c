/* What somebody meant who wrote a key that there is not. */
#include "ckpt/base/nearest.h"
#include "trainer/config/keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64, MISSPELT_MIN = 5 /* letters: shorter words are near too much */ };

/* Sections and keys as other trainers call them: words.txt. */
static const struct alias {
    const char *words, *section;
} aliases[] = {
#define SECTION(section, words) {words, section},
#define KEY(key, words)
#define EXPLAINED(said, words)
#include "trainer/config/words.inc"
#undef SECTION
#undef KEY
#undef EXPLAINED
};

static const struct meant {
    const char *words;
    struct pd_key_meaning meaning;
} meant[] = {
#define SECTION(section, words)
#define KEY(key, words) {words, {key, NULL}},
#define EXPLAINED(said, words) {words, {NULL, said}},
#include "trainer/config/words.inc"
};

/* ---- names ---- */

/* "Warmup-Steps", "warmup_steps" and "warmupSteps" are the same: without marks, in small letters. */
struct plain {
    char text[NAME_BYTES];
};

static struct plain plain_of(const char *name, size_t bytes)
{
    struct plain p = {""};
    size_t length = 0;
    for (size_t i = 0; i < bytes && name[i] && length + 1 < NAME_BYTES; i++)
        if (name[i] != '.' && name[i] != '_' && name[i] != '-') p.text[length++] = (char)tolower((unsigned char)name[i]);
    return p;
}

static struct plain plain(const char *name)
{
    return plain_of(name, SIZE_MAX);
}

static bool is_same(const struct plain *a, const struct plain *b)
{
    return a->text[0] == b->text[0] && strcmp(a->text, b->text) == 0;
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static struct plain section_of(const char *path)
{
    return plain_of(path, (size_t)(last_part(path) - path));
}

/* The words of a row, one after the other; NULL: that was the last. */
static const char *next_word(const char *words, struct plain *ret_word)
{
    words += strspn(words, " ");
    const size_t length = strcspn(words, " ");
    *ret_word = plain_of(words, length);
    return length ? words + length : NULL;
}

static bool has_word(const char *words, const struct plain *name)
{
    for (struct plain word; (words = next_word(words, &word));)
        if (is_same(&word, name)) return true;
    return false;
}

/* ---- what is written ---- */

struct written {
    const char *path;
    struct plain section, last;     /* section: one that there is, if that can be told; of a bare word "run" */
    struct plain whole, two, known; /* all of it; its last two parts; section and last */
};

/* By spelling, or as others call it. */
static struct plain find_section(const struct plain *name)
{
    struct plain nearest = *name;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (has_word(aliases[i].words, name)) return plain(aliases[i].section);
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain section = section_of(pd_keys[i].name);
        if (is_same(&section, name)) return section;
        if (pd_is_near(section.text, name->text)) nearest = section;
    }
    return nearest;
}

static struct written read_path(const char *path)
{
    struct written w = {.path = path, .last = plain(last_part(path)), .whole = plain(path)};
    const char *dot = strrchr(path, '.'), *before = dot ? memrchr(path, '.', (size_t)(dot - path)) : NULL;
    char known[2 * NAME_BYTES];
    const struct plain section = plain_of(path, strcspn(path, "."));
    w.section = dot ? find_section(&section) : plain("run");
    w.two = plain(before ? before + 1 : path);
    snprintf(known, sizeof known, "%s%s", w.section.text, w.last.text);
    w.known = plain(known);
    return w;
}

/* ---- what is meant ---- */

/* UINT32_MAX: it is not near. */
static uint32_t distance_if_near(const struct plain *name, const struct plain *given)
{
    if (is_same(name, given)) return 0;
    if (strlen(given->text) < MISSPELT_MIN || !pd_is_near(name->text, given->text)) return UINT32_MAX;
    return pd_edit_distance(name->text, given->text);
}

static const struct pd_key *find_spelt(const struct written *w)
{
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain key = plain(pd_keys[i].name);
        if (is_same(&key, &w->known) || is_same(&key, &w->whole)) return &pd_keys[i];
    }
    return NULL;
}

static const struct meant *find_meant(const struct written *w)
{
    const struct plain *const texts[] = {&w->whole, &w->two, &w->known, &w->last};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
            if (has_word(meant[i].words, texts[t])) return &meant[i];
    return NULL;
}

/* keep_last begins with keep, and hang_seconds ends with seconds. */
static bool is_part(const char *part, const char *whole)
{
    const size_t length = strlen(part), all = strlen(whole);
    if (!length || length >= all) return false;
    return (strncmp(whole, part, length) == 0 && whole[length] == '_') ||
           (strcmp(whole + all - length, part) == 0 && whole[all - length - 1] == '_');
}

/* The nearest of the section; otherwise the only one of which it is a part, or which is a part of it. */
static const struct pd_key *find_in_section(const struct written *w)
{
    const struct pd_key *nearest = NULL, *part = NULL;
    uint32_t best = UINT32_MAX, parts = 0;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain section = section_of(pd_keys[i].name), last = plain(last_part(pd_keys[i].name));
        if (!is_same(&section, &w->section)) continue;
        if (pd_is_near(last.text, w->last.text) && pd_edit_distance(last.text, w->last.text) < best) {
            best = pd_edit_distance(last.text, w->last.text);
            nearest = &pd_keys[i];
        }
        const char *name = last_part(pd_keys[i].name), *given = last_part(w->path);
        if (given == w->path || (!is_part(given, name) && !is_part(name, given))) continue; /* "every" may be anything's */
        part = &pd_keys[i];
        parts++;
    }
    return nearest ? nearest : parts == 1 ? part : NULL;
}

/* The only one that is called so in another section, or nearly so. */
static const struct pd_key *find_elsewhere(const struct written *w)
{
    const struct pd_key *found = NULL;
    uint32_t best = UINT32_MAX;
    bool is_only = false;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain last = plain(last_part(pd_keys[i].name));
        const uint32_t distance = distance_if_near(&last, &w->last);
        if (distance > best || distance == UINT32_MAX) continue;
        is_only = distance < best;
        best = distance;
        found = &pd_keys[i];
    }
    return is_only ? found : NULL;
}

static const struct meant *find_misspelt(const struct written *w)
{
    const struct meant *nearest = NULL;
    struct plain word;
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
        for (const char *rest = meant[i].words; (rest = next_word(rest, &word));) {
            const uint32_t distance = distance_if_near(&word, &w->last);
            if (distance >= best) continue;
            best = distance;
            nearest = &meant[i];
        }
    return nearest;
}

struct pd_key_meaning pd_key_meant(const char *path)
{
    const struct written w = read_path(path);
    const struct pd_key *key = find_spelt(&w);
    const struct meant *row = key ? NULL : find_meant(&w);
    if (!key && !row) key = find_in_section(&w);
    if (!key && !row) key = find_elsewhere(&w);
    if (!key && !row) row = find_misspelt(&w);
    return row ? row->meaning : (struct pd_key_meaning){.key = key ? key->name : NULL};
}

/* ---- what is said ---- */

bool pd_key_is_section(const char *path)
{
    const size_t length = strlen(path);
    for (uint32_t i = 0; i < pd_key_count; i++)
        if (strncmp(pd_keys[i].name, path, length) == 0 && pd_keys[i].name[length] == '.') return true;
    return false;
}

/* data.train.path: a member of a list without its index. */
static const struct pd_key *list_above(const char *path)
{
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const size_t length = strlen(pd_keys[i].name);
        if (pd_key_is_list(&pd_keys[i]) && strncmp(pd_keys[i].name, path, length) == 0 && path[length] == '.')
            return &pd_keys[i];
    }
    return NULL;
}

void pd_key_suggest(const char *path, char *ret, size_t bytes)
{
    const struct pd_key *list = list_above(path);
    const struct pd_key_meaning answer = pd_key_meant(path);
    if (pd_key_is_section(path))
        snprintf(ret, bytes, "%s is a section: its keys go below it, or are written %s.KEY", path, path);
    else if (list)
        snprintf(ret, bytes, "%s is a list: in a file write \"- %s: ...\" below it, on the command line %s[0].%s=...",
                 list->name, path + strlen(list->name) + 1, list->name, path + strlen(list->name) + 1);
    else if (answer.key)
        snprintf(ret, bytes, "unknown key %s; did you mean %s?", path, answer.key);
    else if (answer.said)
        snprintf(ret, bytes, "unknown key %s: %s", path, answer.said);
    else
        snprintf(ret, bytes, "unknown key %s; perdure train --print-config lists all keys", path);
}
