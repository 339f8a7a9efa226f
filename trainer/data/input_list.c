#include "trainer/data/input_list.h"

#include "ckpt/base/words.h"
#include "trainer/data/byte_stream.h"
#include "trainer/data/token_origin.h"
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NAMED_BYTES 160u /* of names in a note: then "and 7 more" */

/* ---- lists of strings ---- */

/* Takes `text` over; NULL stands for no memory. */
static pd_status push(char ***list, uint32_t *count, char *text, struct pd_error *err)
{
    char **grown = text ? reallocarray(*list, *count + 1ull, sizeof *grown) : NULL;
    if (grown) *list = grown;
    if (!grown) {
        free(text);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a list of %u files", *count + 1);
    }
    grown[(*count)++] = text;
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

/* "a, b and 7 more", appended. */
static void list_names(FILE *out, char *const *names, uint32_t count)
{
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        used += strlen(names[i]) + 2;
        if (i && used > NAMED_BYTES) {
            fprintf(out, " and %u more", count - i);
            return;
        }
        fprintf(out, "%s%s", i ? ", " : "", names[i]);
    }
}

static pd_status note(struct pd_input_list *list, const char *entry, char *const *names, uint32_t count,
                      char *const *left_out, uint32_t left_count, struct pd_error *err)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to list its files", entry);
    fprintf(out, "%s: %s: ", entry, pd_counted(count, "file").text);
    list_names(out, names, count);
    if (left_count) fprintf(out, "; left out: ");
    list_names(out, left_out, left_count);
    fclose(out);
    return push(&list->notes, &list->note_count, text, err);
}

/* ---- directories ---- */

struct found {
    char **names, **left_out; /* owned */
    uint32_t count, left_count;
};

static char *joined(const char *directory, const char *name)
{
    const size_t length = strlen(directory);
    char *path;
    return asprintf(&path, "%s%s%s", directory, length && directory[length - 1] == '/' ? "" : "/", name) < 0 ? NULL : path;
}

/* *ret_why: why the file does not belong to the directory's; NULL: it does. What is damaged is an error: to pass over it would
 * be to train on less in silence. */
static pd_status judge(const char *path, bool takes_tokens, const char **ret_why, struct pd_error *err)
{
    struct stat st;
    struct pd_byte_stream *stream;
    *ret_why = NULL;
    if (stat(path, &st) != 0) PD_FAIL_ERRNO(err, errno, "%s", path);
    if (!S_ISREG(st.st_mode)) {
        *ret_why = S_ISDIR(st.st_mode) ? "a directory" : "no regular file";
        return PD_OK;
    }
    if (st.st_size == 0) {
        *ret_why = "empty";
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

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), bytes = strlen(end);
    return length > bytes && strcmp(name + length - bytes, end) == 0;
}

/* What belongs to a token file beside it. */
static bool is_companion(const char *name, bool takes_tokens)
{
    return ends_with(name, PD_TOKEN_ORIGIN_END) || (takes_tokens && ends_with(name, ".idx"));
}

/* A file as a directory or a glob has it: into the found, the left out, or neither. */
static pd_status sort_in(const char *path, const char *name, bool takes_tokens, struct found *found, struct pd_error *err)
{
    const char *why = NULL;
    char *text = NULL;
    if (is_companion(name, takes_tokens)) return PD_OK;
    PD_TRY(judge(path, takes_tokens, &why, err));
    if (!why) return push(&found->names, &found->count, strdup(name), err);
    return push(&found->left_out, &found->left_count, asprintf(&text, "%s (%s)", name, why) < 0 ? NULL : text, err);
}

static pd_status sort_entry_in(const char *directory, const char *name, bool takes_tokens, struct found *found,
                               struct pd_error *err)
{
    char *path = joined(directory, name);
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to list its files", directory);
    pd_status status = sort_in(path, name, takes_tokens, found, err);
    free(path);
    return status;
}

static void found_deinit(struct found *found)
{
    free_strings(found->names, found->count);
    free_strings(found->left_out, found->left_count);
}

static pd_status look_through(const char *directory, bool takes_tokens, struct found *found, struct pd_error *err)
{
    DIR *dir = opendir(directory);
    if (!dir) PD_FAIL_ERRNO(err, errno, "%s cannot be listed", directory);
    pd_status status = PD_OK;
    errno = 0;
    for (struct dirent *e; !status && (e = readdir(dir)); errno = 0)
        if (e->d_name[0] != '.') status = sort_entry_in(directory, e->d_name, takes_tokens, found, err);
    const int failed = status ? 0 : errno;
    closedir(dir);
    if (failed) PD_FAIL_ERRNO(err, failed, "%s cannot be listed", directory);
    if (found->count) qsort(found->names, found->count, sizeof *found->names, by_bytes);
    if (found->left_count) qsort(found->left_out, found->left_count, sizeof *found->left_out, by_bytes);
    return status;
}

static pd_status fail_none(const char *entry, const char *verb, const struct found *found, struct pd_error *err)
{
    PD_FAIL(err, PD_INVALID, "%s %s no file of text, JSON lines or tokens%s%s%s; name the files", entry, verb,
            found->left_count ? ", but " : "", found->left_count ? found->left_out[0] : "",
            found->left_count > 1 ? " and others" : "");
}

static pd_status take_found(struct pd_input_list *list, const char *directory, const struct found *found,
                            struct pd_error *err)
{
    if (!found->count && !found->left_count) PD_FAIL(err, PD_INVALID, "%s is an empty directory; name another", directory);
    if (!found->count) return fail_none(directory, "holds", found, err);
    for (uint32_t i = 0; i < found->count; i++)
        PD_TRY(push(&list->paths, &list->count, joined(directory, found->names[i]), err));
    return note(list, directory, found->names, found->count, found->left_out, found->left_count, err);
}

static pd_status add_directory(struct pd_input_list *list, const char *directory, bool takes_tokens, struct pd_error *err)
{
    struct found found = {0};
    pd_status status = look_through(directory, takes_tokens, &found, err);
    if (!status) status = take_found(list, directory, &found, err);
    found_deinit(&found);
    return status;
}

/* ---- globs ---- */

static pd_status add_one(struct pd_input_list *list, const char *path, bool takes_tokens, struct pd_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return add_directory(list, path, takes_tokens, err);
    return push(&list->paths, &list->count, strdup(path), err);
}

/* In the order of names, directories among them. */
static pd_status add_match(struct pd_input_list *list, const char *path, bool takes_tokens, struct found *found,
                           struct pd_error *err)
{
    struct stat st;
    const uint32_t before = found->count;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return add_directory(list, path, takes_tokens, err);
    PD_TRY(sort_in(path, path, takes_tokens, found, err));
    return found->count > before ? push(&list->paths, &list->count, strdup(path), err) : PD_OK;
}

static pd_status add_matches(struct pd_input_list *list, const char *pattern, char *const *matches, size_t count,
                             bool takes_tokens, struct pd_error *err)
{
    struct found found = {0};
    const uint32_t before = list->count;
    pd_status status = PD_OK;
    for (size_t i = 0; !status && i < count; i++)
        status = add_match(list, matches[i], takes_tokens, &found, err);
    if (!status && list->count == before) status = fail_none(pattern, "matches", &found, err);
    if (!status && found.count + found.left_count)
        status = note(list, pattern, found.names, found.count, found.left_out, found.left_count, err);
    found_deinit(&found);
    return status;
}

static pd_status add_glob(struct pd_input_list *list, const char *pattern, bool takes_tokens, struct pd_error *err)
{
    glob_t matches;
    const int failed = glob(pattern, GLOB_NOSORT, NULL, &matches);
    if (failed == GLOB_NOMATCH) PD_FAIL(err, PD_NOT_FOUND, "no file matches %s; check with ls", pattern);
    if (failed == GLOB_NOSPACE) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to list what matches", pattern);
    if (failed) PD_FAIL_ERRNO(err, errno ? errno : EIO, "%s cannot be listed", pattern);
    qsort(matches.gl_pathv, matches.gl_pathc, sizeof *matches.gl_pathv, by_bytes);
    pd_status status = add_matches(list, pattern, matches.gl_pathv, matches.gl_pathc, takes_tokens, err);
    globfree(&matches);
    return status;
}

pd_status pd_input_list_add(struct pd_input_list *list, const char *entry, bool takes_tokens, struct pd_error *err)
{
    struct stat st;
    const bool is_there = lstat(entry, &st) == 0;
    if (!is_there && strpbrk(entry, "*?[")) return add_glob(list, entry, takes_tokens, err);
    return add_one(list, entry, takes_tokens, err);
}

void pd_input_list_deinit(struct pd_input_list *list)
{
    if (!list) return;
    free_strings(list->paths, list->count);
    free_strings(list->notes, list->note_count);
    *list = (struct pd_input_list){0};
}
