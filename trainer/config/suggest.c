/* Guesses the key meant by an unknown one. */
#include "ckpt/base/nearest.h"
#include "trainer/config/keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64, MISSPELT_MIN = 5 /* letters: shorter words have too many neighbours */ };

/* Other trainers' names of sections and keys: words.txt. */
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

/* "Warmup-Steps", "warmup_steps" and "warmupSteps" are equal: no separators, lower case. */
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

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static struct plain section_of(const char *path)
{
    return plain_of(path, (size_t)(last_part(path) - path));
}

/* The words of a row, one by one; NULL: no more. */
static const char *next_word(const char *words, struct plain *ret_word)
{
    words += strspn(words, " ");
    const size_t length = strcspn(words, " ");
    *ret_word = plain_of(words, length);
    return length ? words + length : NULL;
}

static bool has_word(const char *words, const char *name)
{
    for (struct plain word; (words = next_word(words, &word));)
        if (strcmp(word.text, name) == 0) return true;
    return false;
}

/* By spelling, or by other trainers' names. */
static struct plain find_section(struct plain name)
{
    struct plain nearest = name;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (has_word(aliases[i].words, name.text)) return plain(aliases[i].section);
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct plain section = section_of(pd_keys[i].name);
        if (strcmp(section.text, name.text) == 0) return section;
        if (pd_is_near(section.text, name.text)) nearest = section;
    }
    return nearest;
}

/* Edits from one to the other; UINT32_MAX: too far. */
static uint32_t edits(const char *name, const char *given)
{
    return pd_is_near(name, given) || !strcmp(name, given) ? pd_edit_distance(name, given) : UINT32_MAX;
}

/* The nearest key, preferably in the section, unless several are equally near. */
static const struct pd_key *find_near_key(const char *section, const char *last)
{
    const struct pd_key *found = NULL;
    uint64_t best = UINT32_MAX;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const bool is_here = strcmp(section_of(pd_keys[i].name).text, section) == 0;
        const uint64_t distance = 2ull * edits(plain(last_part(pd_keys[i].name)).text, last) + !is_here;
        if (distance > best || (!is_here && distance > 1 && strlen(last) < MISSPELT_MIN)) continue;
        if (distance < best)
            found = &pd_keys[i];
        else if (!is_here)
            found = NULL;
        best = distance;
    }
    return found;
}

static const struct meant *find_near_word(const char *last)
{
    const struct meant *found = NULL;
    struct plain word;
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; strlen(last) >= MISSPELT_MIN && i < sizeof meant / sizeof *meant; i++)
        for (const char *rest = meant[i].words; (rest = next_word(rest, &word));) {
            const uint32_t distance = edits(word.text, last);
            if (distance >= best) continue;
            best = distance;
            found = &meant[i];
        }
    return found;
}

/* Tries the full path, its last two parts, the last part in the meant section, and alone: first by exact key, then by other
 * trainers' names, then by similarity. */
struct pd_key_meaning pd_key_meant(const char *path)
{
    const char *dot = strrchr(path, '.'), *before = dot ? memrchr(path, '.', (size_t)(dot - path)) : NULL;
    const struct plain last = plain(last_part(path)),
                       section = dot ? find_section(plain_of(path, strcspn(path, "."))) : plain("run");
    char known[2 * NAME_BYTES];
    snprintf(known, sizeof known, "%s%s", section.text, last.text);
    const struct plain texts[] = {plain(path), plain(before ? before + 1 : path), plain(known), last};
    for (uint32_t i = 0; i < pd_key_count; i++)
        for (int t = 0; t <= 2; t += 2)
            if (strcmp(plain(pd_keys[i].name).text, texts[t].text) == 0)
                return (struct pd_key_meaning){.key = pd_keys[i].name};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
            if (has_word(meant[i].words, texts[t].text)) return meant[i].meaning;
    const struct pd_key *key = find_near_key(section.text, last.text);
    const struct meant *row = key ? NULL : find_near_word(last.text);
    return row ? row->meaning : (struct pd_key_meaning){.key = key ? key->name : NULL};
}

/* ---- messages ---- */

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
        if (pd_keys[i].list && strncmp(pd_keys[i].name, path, length) == 0 && path[length] == '.') return &pd_keys[i];
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
