/* The resolved whole as YAML. */
#include "trainer/config/keys.h"

#include "ckpt/base/utf8.h"
#include "trainer/data/token_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMENT_COLUMN 38

/* Double quotes hold anything; what YAML does not take as it is, is escaped. */
static void print_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    while (*text) {
        const char *start = text;
        uint32_t c = pd_utf8_next(&text);
        PD_CHECK(c != UINT32_MAX); /* pd_key_set let it through */
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", (int)c);
        else if (c < 0x20 || (c >= 0x7f && c < 0xa0))
            fprintf(out, "\\x%02x", c);
        else if (c == 0xfeff || c == 0xfffe || c == 0xffff)
            fprintf(out, "\\u%04x", c);
        else
            fwrite(start, 1, (size_t)(text - start), out);
    }
    fputc('"', out);
}

static void print_sources(FILE *out, const struct pd_data_source *sources, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fputs("    - {path: ", out);
        print_quoted(out, sources[i].path);
        fprintf(out, ", format: %s", pd_data_format_name(sources[i].format));
        if (sources[i].weight) { /* files without weights count by size */
            char text[40];
            pd_key_number_text(sources[i].weight, text, sizeof text);
            fprintf(out, ", weight: %s", text);
        }
        fputs("}\n", out);
    }
}

static void print_tiers(FILE *out, const struct pd_config_tier *tiers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fputs("    - {dir: ", out);
        print_quoted(out, tiers[i].dir);
        fprintf(out, ", every: %" PRIu64 ", keep_last: %" PRIu32 ", keep_every: %" PRIu64 ", bandwidth: %" PRIu64,
                tiers[i].every, tiers[i].keep_last, tiers[i].keep_every, tiers[i].bandwidth);
        if (tiers[i].replicas) fprintf(out, ", replicas: %" PRIu32, tiers[i].replicas);
        fprintf(out, ", compression: %s}\n", tiers[i].compression);
    }
}

static void print_key(FILE *out, const struct pd_config *config, const struct pd_key *key)
{
    const char *dot = strchr(key->name, '.');
    long line_start = ftell(out);
    fprintf(out, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : key->name);
    const void *member = (const char *)config + key->offset;
    uint32_t count = 0;
    if (key->count_offset) memcpy(&count, (const char *)config + key->count_offset, sizeof count);
    if (key->type == PD_KEY_SOURCES || key->type == PD_KEY_TIERS) {
        if (!count) fputs("[]", out);
    } else if (key->type == PD_KEY_RANKS) {
        const uint32_t *ranks = *(uint32_t *const *)member;
        fputc('[', out);
        for (uint32_t i = 0; i < count; i++)
            fprintf(out, i ? ", %u" : "%u", ranks[i]);
        fputc(']', out);
    } else if (key->type == PD_KEY_STRING) {
        print_quoted(out, *(char *const *)member);
    } else {
        char text[64];
        pd_key_text(config, key, text, sizeof text);
        fputs(pd_key_is_left(config, key) ? "auto" : text, out);
    }
    const char *meaning = key->meaning;
    long width = ftell(out) - line_start;
    fprintf(out, "%*s  # %s\n", width < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - width) : 0, "", meaning);
    if (key->type == PD_KEY_SOURCES) print_sources(out, *(struct pd_data_source *const *)member, count);
    if (key->type == PD_KEY_TIERS) print_tiers(out, *(struct pd_config_tier *const *)member, count);
}

pd_status pd_config_print(const struct pd_config *config, char **ret_yaml, struct pd_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "no memory to print the configuration");
    const char *section = "";
    size_t section_length = 0;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct pd_key *key = &pd_keys[i];
        size_t length = strcspn(key->name, ".");
        if (key->name[length] == '.' && (length != section_length || strncmp(section, key->name, length) != 0))
            fprintf(out, "%s%.*s:\n", i ? "\n" : "", (int)length, key->name);
        else if (key->name[length] == '\0')
            fputc('\n', out);
        section = key->name;
        section_length = length;
        print_key(out, config, key);
    }
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to print the configuration");
    }
    *ret_yaml = text;
    return PD_OK;
}

pd_status pd_config_write(const struct pd_config *config, const char *path, struct pd_error *err)
{
    char *yaml = NULL, temporary[4200];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    PD_TRY(pd_config_print(config, &yaml, err));
    (void)unlink(temporary); /* of a killed process with this number; a new file follows no link */
    FILE *f = fopen(temporary, "wxe");
    bool written = f && fputs(yaml, f) >= 0;
    if (f && fclose(f)) written = false;
    int number = errno;
    free(yaml);
    if (written && !rename(temporary, path)) return PD_OK;
    if (written) number = errno;
    if (f) unlink(temporary);
    PD_FAIL_ERRNO(err, number, "%s: writing it", path);
}
