#include "trainer/data/input_list.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/words.h"
#include "trainer/data/byte_stream.h"
#include "trainer/data/data_cache.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_loss.h"
#include "trainer/data/token_origin.h"
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files for training ---- */

static pd_status refuse_unpacked(const char *path, const char *what, struct pd_error *err)
{
    PD_FAIL(err, PD_INVALID,
            "%s is %s, and training reads plain text or tokens; pack it once with perdure data pack, and name its output",
            path, what);
}

static bool is_packed(enum pd_input_form form)
{
    return form == PD_INPUT_TOKENS || form == PD_INPUT_DOUBTFUL;
}

static pd_status check_kind(const struct pd_byte_stream *stream, const char *path, enum pd_data_format asked,
                            struct pd_error *err)
{
    const struct pd_input_kind kind = pd_byte_stream_kind(stream);
    const enum pd_input_form compression = pd_byte_stream_compression(stream);
    const char *outer = compression == PD_INPUT_GZIP   ? "compressed with gzip"
                        : compression == PD_INPUT_ZSTD ? "compressed with zstd"
                                                       : NULL;
    if (kind.form == PD_INPUT_OTHER) return pd_input_refuse(path, kind.what, err);
    if (outer && is_packed(kind.form)) return pd_input_refuse(path, outer, err);
    if (outer) return refuse_unpacked(path, outer, err);
    if (asked == PD_DATA_TEXT) return PD_OK;
    if (kind.form == PD_INPUT_DOUBTFUL) return pd_input_refuse(path, kind.what, err);
    return kind.form == PD_INPUT_JSON_LINES ? refuse_unpacked(path, kind.what, err) : PD_OK;
}

/* Notes on how its bytes are used, which the user may not know. */
static pd_status note_bytes(FILE *notes, struct pd_byte_stream *stream, const char *path, struct pd_error *err)
{
    char head[PD_INPUT_HEAD_BYTES];
    size_t bytes = 0;
    if (pd_byte_stream_drop_mark(stream)) fprintf(notes, "%s: its byte order mark is skipped\n", path);
    PD_TRY(pd_byte_stream_read(stream, head, sizeof head, &bytes, err));
    if (memmem(head, bytes, "\r\n", 2))
        fprintf(notes, "%s: its lines end in CRLF, and both bytes are learned; perdure data pack writes LF\n", path);
    return PD_OK;
}

pd_status pd_source_check_text(const char *path, enum pd_data_format asked, FILE *notes, struct pd_error *err)
{
    struct pd_byte_stream *stream;
    PD_TRY(pd_byte_stream_open(path, &stream, err));
    pd_status status = check_kind(stream, path, asked, err);
    if (!status && notes && pd_byte_stream_kind(stream).form == PD_INPUT_TEXT) status = note_bytes(notes, stream, path, err);
    pd_byte_stream_close(stream);
    return status;
}

/* ---- lists ---- */

struct finding {
    const char *key;
    FILE *notes;
    struct pd_data_source *sources; /* (count) the new list */
    uint32_t count;
};

static pd_status sources_push(struct finding *f, const struct pd_data_source *like, const char *path, double weight,
                              struct pd_error *err)
{
    if (!pd_grow(&f->sources, f->count, sizeof *f->sources))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a list of %u files", f->count + 1);
    char *copy = strdup(path);
    if (!copy) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its name", path);
    f->sources[f->count++] = (struct pd_data_source){copy, like->format, weight};
    return PD_OK;
}

static pd_status check_file(const struct finding *f, const char *path, const struct pd_data_source *entry,
                            struct pd_error *err)
{
    struct stat st;
    const bool may_be_text = entry->format == PD_DATA_TEXT || entry->format == PD_DATA_AUTO;
    if (!may_be_text || pd_megatron_is_pair(path)) return PD_OK;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || !st.st_size) return PD_OK; /* opening it reports that */
    return pd_source_check_text(path, entry->format, f->notes, err);
}

static bool stands_for_several(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? S_ISDIR(st.st_mode) : strpbrk(path, "*?[") != NULL;
}

static double input_list_bytes_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_size > 0 ? (double)st.st_size : 1;
}

static pd_status take_several(struct finding *f, const struct pd_data_source *entry, const struct pd_input_list *list,
                              struct pd_error *err)
{
    double bytes = 0;
    if (list->count > PD_SOURCES_MAX)
        PD_FAIL(err, PD_INVALID,
                "%s stands for %u files, and training reads up to %u of one; pack them once with perdure data pack, and "
                "name its "
                "output",
                entry->path, list->count, PD_SOURCES_MAX);
    for (uint32_t i = 0; i < list->note_count; i++)
        fprintf(f->notes, "%s\n", list->notes[i]);
    for (uint32_t i = 0; i < list->count; i++)
        bytes += input_list_bytes_of(list->paths[i]);
    for (uint32_t i = 0; i < list->count; i++) {
        PD_TRY(check_file(f, list->paths[i], entry, err));
        PD_TRY(sources_push(f, entry, list->paths[i], entry->weight * input_list_bytes_of(list->paths[i]) / bytes, err));
    }
    return PD_OK;
}

/* Nobody looks into the files here: ranks do, after they are fetched. */
static pd_status take_remote(struct finding *f, const struct pd_data_source *entry, struct pd_error *err)
{
    struct pd_remote_list list = {NULL, NULL, 0};
    double bytes = 0;
    pd_status st = pd_data_cache_list(entry->path, &list, err);
    if (!st && list.count > PD_SOURCES_MAX)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "%s stands for %u files, and training reads up to %u of one; make fewer and larger ones",
                          entry->path, list.count, PD_SOURCES_MAX);
    for (uint32_t i = 0; i < list.count; i++)
        bytes += (double)list.bytes[i];
    for (uint32_t i = 0; !st && i < list.count; i++)
        st = sources_push(f, entry, list.urls[i], entry->weight * (double)list.bytes[i] / bytes, err);
    if (!st && (list.count > 1 || strcmp(list.urls[0], entry->path) != 0))
        fprintf(f->notes, "%s: %s, %s\n", entry->path, pd_counted(list.count, "file").text, pd_bytes_text(bytes).text);
    pd_remote_list_deinit(&list);
    return st;
}

static pd_status take_entry(struct finding *f, const struct pd_data_source *entry, struct pd_error *err)
{
    struct pd_input_list list = {0};
    if (pd_data_is_remote(entry->path)) return take_remote(f, entry, err);
    if (!stands_for_several(entry->path)) {
        if (strchr(entry->path, ',') && access(entry->path, F_OK) != 0 && errno == ENOENT)
            PD_FAIL(err, PD_NOT_FOUND, "%s: there is no such file; several are a list: %s=[%s]", entry->path, f->key,
                    entry->path);
        PD_TRY(check_file(f, entry->path, entry, err));
        return sources_push(f, entry, entry->path, entry->weight, err);
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

pd_status pd_sources_find(struct pd_data_source **sources, uint32_t *count, const char *key, FILE *notes,
                          struct pd_error *err)
{
    struct finding f = {.key = key, .notes = notes};
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

#define NAMED_BYTES 160u /* of names in a note: then "and 7 more" */

/* ---- lists of strings ---- */

/* Takes ownership of `text`; NULL: out of memory. */
static pd_status push(char ***list, uint32_t *count, char *text, struct pd_error *err)
{
    if (!text || !pd_grow(list, *count, sizeof **list)) {
        free(text);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a list of %u files", *count + 1);
    }
    (*list)[(*count)++] = text;
    return PD_OK;
}

static void free_strings(char **list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* ---- directories and globs ---- */

struct taking {
    struct pd_input_list *list;
    const char *entry;
    uint32_t before;  /* of the list's paths */
    size_t directory; /* bytes that the paths of a directory begin with */
    bool takes_tokens;
    char **left_out; /* (left_count) "NAME (why)", owned */
    uint32_t left_count;
};

/* Appends "a, b and 7 more"; skips `skipped` bytes of each name. */
static void list_names(FILE *out, char *const *names, uint32_t count, size_t skipped)
{
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        used += strlen(names[i] + skipped) + 2;
        if (i && used > NAMED_BYTES) {
            fprintf(out, " and %u more", count - i);
            return;
        }
        fprintf(out, "%s%s", i ? ", " : "", names[i] + skipped);
    }
}

static pd_status note_taken(struct taking *t, struct pd_error *err)
{
    struct pd_input_list *list = t->list;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to list its files", t->entry);
    fprintf(out, "%s: %s: ", t->entry, pd_counted(list->count - t->before, "file").text);
    list_names(out, list->paths + t->before, list->count - t->before, t->directory);
    if (t->left_count) fprintf(out, "; left out: ");
    list_names(out, t->left_out, t->left_count, 0);
    fclose(out);
    return push(&list->notes, &list->note_count, text, err);
}

/* *ret_why: why the file does not belong to the directory's; NULL: it does. Damage is an error: skipping such a file would train
 * on less in silence. */
static pd_status input_list_judge(const char *path, bool takes_tokens, const char **ret_why, struct pd_error *err)
{
    struct stat st;
    struct pd_byte_stream *stream;
    *ret_why = NULL;
    if (stat(path, &st) != 0) PD_FAIL_ERRNO(err, errno, "%s", path);
    if (!S_ISREG(st.st_mode) || !st.st_size) {
        *ret_why = S_ISDIR(st.st_mode) ? "a directory" : S_ISREG(st.st_mode) ? "empty" : "no regular file";
        return PD_OK;
    }
    pd_status status = pd_byte_stream_open(path, &stream, err);
    if (status == PD_INVALID) *ret_why = "compressed twice";
    if (status) return status == PD_INVALID ? PD_OK : status;
    const struct pd_input_kind kind = pd_byte_stream_kind(stream);
    pd_byte_stream_close(stream);
    if (kind.form == PD_INPUT_OTHER || kind.form == PD_INPUT_DOUBTFUL || (kind.form == PD_INPUT_TOKENS && !takes_tokens))
        *ret_why = kind.what;
    return PD_OK;
}

static pd_status take_path(struct taking *t, const char *path, struct pd_error *err)
{
    const char *why = NULL;
    char *text = NULL;
    /* A companion of a token file. */
    if (pd_ends_with(path, PD_TOKEN_ORIGIN_END) || pd_ends_with(path, PD_TOKEN_LOSS_END) ||
        (t->takes_tokens && pd_ends_with(path, ".idx")))
        return PD_OK;
    PD_TRY(input_list_judge(path, t->takes_tokens, &why, err));
    if (!why) return push(&t->list->paths, &t->list->count, strdup(path), err);
    if (asprintf(&text, "%s (%s)", path + t->directory, why) < 0) text = NULL;
    return push(&t->left_out, &t->left_count, text, err);
}

static pd_status take_directory(struct taking *t, const char *directory, struct pd_error *err)
{
    struct dirent **entries = NULL;
    const size_t length = strlen(directory);
    const char *slash = length && directory[length - 1] == '/' ? "" : "/";
    const int count = scandir(directory, &entries, is_shown, by_name);
    if (count < 0) PD_FAIL_ERRNO(err, errno, "%s cannot be listed", directory);
    pd_status status = PD_OK;
    for (int i = 0; i < count; i++) {
        char *path = NULL;
        if (!status && asprintf(&path, "%s%s%s", directory, slash, entries[i]->d_name) < 0)
            status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory to list its files", directory);
        if (!status) status = take_path(t, path, err);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* In the order of names, directories among them. */
static pd_status take_matches(struct taking *t, struct pd_error *err)
{
    glob_t matches;
    pd_status status = PD_OK;
    const int failed = glob(t->entry, GLOB_NOSORT, NULL, &matches);
    if (failed == GLOB_NOMATCH) PD_FAIL(err, PD_NOT_FOUND, "no file matches %s; check with ls", t->entry);
    if (failed == GLOB_NOSPACE) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to list what matches", t->entry);
    if (failed) PD_FAIL_ERRNO(err, errno ? errno : EIO, "%s cannot be listed", t->entry);
    qsort(matches.gl_pathv, matches.gl_pathc, sizeof *matches.gl_pathv, by_bytes);
    for (size_t i = 0; !status && i < matches.gl_pathc; i++)
        status = (is_directory(matches.gl_pathv[i]) ? take_directory : take_path)(t, matches.gl_pathv[i], err);
    globfree(&matches);
    return status;
}

pd_status pd_input_list_add(struct pd_input_list *list, const char *entry, bool takes_tokens, struct pd_error *err)
{
    struct taking t = {.list = list, .entry = entry, .before = list->count, .takes_tokens = takes_tokens};
    struct stat st;
    const bool is_glob = lstat(entry, &st) != 0 && strpbrk(entry, "*?[");
    if (!is_glob && !is_directory(entry)) return push(&list->paths, &list->count, strdup(entry), err);
    if (!is_glob) t.directory = strlen(entry) + (entry[strlen(entry) - 1] != '/');
    pd_status status = is_glob ? take_matches(&t, err) : take_directory(&t, entry, err);
    const bool has_none = list->count == t.before;
    if (!status && has_none && !t.left_count && !is_glob)
        status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s is an empty directory; name another", entry);
    else if (!status && has_none)
        status =
            pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s %s no file of text, JSON lines or tokens%s%s%s; name the files",
                         entry, is_glob ? "matches" : "holds", t.left_count ? ", but " : "",
                         t.left_count ? t.left_out[0] : "", t.left_count > 1 ? " and others" : "");
    if (!status) status = note_taken(&t, err);
    free_strings(t.left_out, t.left_count);
    return status;
}

void pd_input_list_deinit(struct pd_input_list *list)
{
    if (!list) return;
    free_strings(list->paths, list->count);
    free_strings(list->notes, list->note_count);
    *list = (struct pd_input_list){0};
}
