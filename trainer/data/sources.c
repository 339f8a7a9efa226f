#include "trainer/data/sources.h"

#include "trainer/data/byte_stream.h"
#include "trainer/data/input_list.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/token_file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what can be trained on ---- */

/* "corpus/a.jsonl.gz" and "corpus/a*.gz" -> "corpus/a.bin"; "corpus/" -> "corpus.bin" */
static void packed_name(const char *entry, char *ret, size_t capacity)
{
    static const char *const endings[] = {".gz", ".zst", ".jsonl", ".ndjson", ".json", ".txt"};
    size_t length = strcspn(entry, "*?[");
    while (length > 1 && entry[length - 1] == '/')
        length--;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        const size_t bytes = strlen(endings[i]);
        if (length > bytes && strncmp(entry + length - bytes, endings[i], bytes) == 0) length -= bytes;
    }
    snprintf(ret, capacity, "%.*s.bin", (int)length, length ? entry : "packed");
}

static pd_status refuse_unpacked(const char *path, const char *entry, const char *what, int64_t document_token,
                                 struct pd_error *err)
{
    char output[512], output_word[512], entry_word[512], token[64] = "";
    packed_name(entry, output, sizeof output);
    if (!strchr(entry, '/') && entry[0] == '*') snprintf(output, sizeof output, "packed.bin");
    if (document_token >= 0) snprintf(token, sizeof token, " --document-token=%" PRId64, document_token);
    pd_shell_word(output, output_word, sizeof output_word);
    pd_shell_word(entry, entry_word, sizeof entry_word);
    PD_FAIL(err, PD_INVALID,
            "%s is %s, and training reads plain text or tokens; pack it once: perdure data pack "
            "--output=%s%s %s, and name %s instead",
            path, what, output_word, token, entry_word, output_word);
}

static bool is_packed(enum pd_input_form form)
{
    return form == PD_INPUT_TOKENS || form == PD_INPUT_DOUBTFUL;
}

pd_status pd_source_check_text(const char *path, const char *entry, enum pd_data_format asked, int64_t document_token,
                               struct pd_error *err)
{
    static const struct pd_input_kind gzip = {PD_INPUT_OTHER, "compressed with gzip", "unpack it: gunzip -k @"},
                                      zstd = {PD_INPUT_OTHER, "compressed with zstd", "unpack it: unzstd @"};
    struct pd_byte_stream *stream;
    PD_TRY(pd_byte_stream_open(path, &stream, err));
    const struct pd_input_kind kind = pd_byte_stream_kind(stream);
    const enum pd_input_form compression = pd_byte_stream_compression(stream);
    pd_byte_stream_close(stream);
    const struct pd_input_kind *outer = compression == PD_INPUT_GZIP ? &gzip : compression == PD_INPUT_ZSTD ? &zstd : NULL;
    if (kind.form == PD_INPUT_OTHER) return pd_input_refuse(path, &kind, err);
    if (outer && is_packed(kind.form)) return pd_input_refuse(path, outer, err);
    if (outer) return refuse_unpacked(path, entry, outer->what, document_token, err);
    if (asked == PD_DATA_TEXT) return PD_OK;
    if (kind.form == PD_INPUT_DOUBTFUL) return pd_input_refuse(path, &kind, err);
    return kind.form == PD_INPUT_JSON_LINES ? refuse_unpacked(path, entry, kind.what, document_token, err) : PD_OK;
}

/* ---- lists ---- */

struct finding {
    const char *key;
    int64_t document_token;
    FILE *notes;
    struct pd_data_source *sources; /* (count, capacity) what will be the list */
    uint32_t count, capacity;
};

static pd_status push(struct finding *f, const struct pd_data_source *like, const char *path, double weight,
                      struct pd_error *err)
{
    if (f->count == f->capacity) {
        const uint32_t capacity = f->capacity ? 2 * f->capacity : 16;
        struct pd_data_source *grown = reallocarray(f->sources, capacity, sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for a list of %u files", capacity);
        f->sources = grown;
        f->capacity = capacity;
    }
    char *copy = strdup(path);
    if (!copy) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its name", path);
    f->sources[f->count++] = (struct pd_data_source){copy, like->format, weight};
    return PD_OK;
}

/* What of its bytes is learned, or is not, where the user may not know. */
static pd_status note_bytes(const struct finding *f, struct pd_byte_stream *stream, const char *path, const char *entry,
                            struct pd_error *err)
{
    char head[PD_INPUT_HEAD_BYTES], output[512], word[512], output_word[512];
    size_t bytes = 0;
    if (pd_byte_stream_drop_mark(stream)) fprintf(f->notes, "%s: its byte order mark is passed over\n", path);
    PD_TRY(pd_byte_stream_read(stream, head, sizeof head, &bytes, err));
    if (!memmem(head, bytes, "\r\n", 2)) return PD_OK;
    packed_name(entry, output, sizeof output);
    fprintf(f->notes, "%s: its lines end in CRLF, and both bytes are learned; perdure data pack --output=%s %s writes LF\n",
            path, pd_shell_word(output, output_word, sizeof output_word), pd_shell_word(entry, word, sizeof word));
    return PD_OK;
}

static pd_status check_file(const struct finding *f, const char *path, const struct pd_data_source *entry,
                            struct pd_error *err)
{
    struct pd_byte_stream *stream;
    struct stat st;
    const bool may_be_text = entry->format == PD_DATA_TEXT || entry->format == PD_DATA_AUTO;
    if (!may_be_text || pd_megatron_is_pair(path)) return PD_OK;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || !st.st_size) return PD_OK; /* whoever opens it says so */
    PD_TRY(pd_source_check_text(path, entry->path, entry->format, f->document_token, err));
    PD_TRY(pd_byte_stream_open(path, &stream, err));
    pd_status status = PD_OK;
    if (pd_byte_stream_kind(stream).form == PD_INPUT_TEXT) status = note_bytes(f, stream, path, entry->path, err);
    pd_byte_stream_close(stream);
    return status;
}

static bool stands_for_several(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? S_ISDIR(st.st_mode) : strpbrk(path, "*?[") != NULL;
}

static double bytes_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_size > 0 ? (double)st.st_size : 1;
}

static pd_status take_several(struct finding *f, const struct pd_data_source *entry, const struct pd_input_list *list,
                              struct pd_error *err)
{
    char output[512], word[512], output_word[512];
    double bytes = 0;
    packed_name(entry->path, output, sizeof output);
    if (list->count > PD_SOURCES_MAX)
        PD_FAIL(err, PD_INVALID,
                "%s stands for %u files, and training reads up to %u of one; pack them once: perdure data "
                "pack --output=%s %s, and name %s instead",
                entry->path, list->count, PD_SOURCES_MAX, pd_shell_word(output, output_word, sizeof output_word),
                pd_shell_word(entry->path, word, sizeof word), output_word);
    for (uint32_t i = 0; i < list->note_count; i++)
        fprintf(f->notes, "%s\n", list->notes[i]);
    for (uint32_t i = 0; i < list->count; i++)
        bytes += bytes_of(list->paths[i]);
    for (uint32_t i = 0; i < list->count; i++) {
        PD_TRY(check_file(f, list->paths[i], entry, err));
        PD_TRY(push(f, entry, list->paths[i], entry->weight * bytes_of(list->paths[i]) / bytes, err));
    }
    return PD_OK;
}

static pd_status take_entry(struct finding *f, const struct pd_data_source *entry, struct pd_error *err)
{
    struct pd_input_list list = {0};
    if (!stands_for_several(entry->path)) {
        if (strchr(entry->path, ',') && access(entry->path, F_OK) != 0 && errno == ENOENT)
            PD_FAIL(err, PD_NOT_FOUND, "%s: there is no such file; several are a list: %s=[%s]", entry->path, f->key,
                    entry->path);
        PD_TRY(check_file(f, entry->path, entry, err));
        return push(f, entry, entry->path, entry->weight, err);
    }
    pd_status status = pd_input_list_add(&list, entry->path, true, err);
    if (!status) status = take_several(f, entry, &list, err);
    pd_input_list_deinit(&list);
    return status;
}

static void free_sources(struct pd_data_source *sources, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(sources[i].path);
    free(sources);
}

pd_status pd_sources_find(struct pd_data_source **sources, uint32_t *count, const char *key, int64_t document_token,
                          FILE *notes, struct pd_error *err)
{
    struct finding f = {.key = key, .document_token = document_token, .notes = notes};
    for (uint32_t i = 0; i < *count; i++) {
        pd_status status = take_entry(&f, &(*sources)[i], err);
        if (!status) continue;
        free_sources(f.sources, f.count);
        return pd_error_context(err, status, "%s[%u]", key, i);
    }
    if (!f.count) return PD_OK;
    free_sources(*sources, *count);
    *sources = f.sources;
    *count = f.count;
    return PD_OK;
}
