#include "resharder/torch/pickle_write.h"

#include <stdlib.h>
#include <string.h>

static void pickle_write_put(struct pd_pickle_writer *w, const void *data, uint64_t bytes)
{
    if (w->is_out_of_memory) return;
    if (w->capacity - w->bytes < bytes) {
        const uint64_t larger = 2 * w->capacity + bytes + 256;
        unsigned char *fresh = realloc(w->text, larger);
        if (!fresh) {
            w->is_out_of_memory = true;
            return;
        }
        w->text = fresh;
        w->capacity = larger;
    }
    memcpy(w->text + w->bytes, data, bytes);
    w->bytes += bytes;
}

static void put_number(struct pd_pickle_writer *w, uint64_t value, unsigned bytes)
{
    unsigned char text[8];
    for (unsigned i = 0; i < bytes; i++)
        text[i] = (unsigned char)(value >> (8 * i));
    pickle_write_put(w, text, bytes);
}

void pd_pickle_begin(struct pd_pickle_writer *w)
{
    pd_pickle_do(w, "\x80\x02");
}

pd_status pd_pickle_finish(struct pd_pickle_writer *w, struct pd_error *err)
{
    pd_pickle_do(w, ".");
    if (w->is_out_of_memory) PD_FAIL(err, PD_NO_MEMORY, "no memory to write a pickle");
    return PD_OK;
}

void pd_pickle_writer_deinit(struct pd_pickle_writer *w)
{
    free(w->text);
    *w = (struct pd_pickle_writer){0};
}

void pd_pickle_do(struct pd_pickle_writer *w, const char *operations)
{
    pickle_write_put(w, operations, strlen(operations));
}

void pd_pickle_put(struct pd_pickle_writer *w, const char *key, const char *operations)
{
    pd_pickle_put_text(w, NULL, key);
    pd_pickle_do(w, operations);
}

void pd_pickle_put_text(struct pd_pickle_writer *w, const char *key, const char *text)
{
    if (key) pd_pickle_put_text(w, NULL, key);
    pd_pickle_do(w, "X");
    put_number(w, strlen(text), 4);
    pd_pickle_do(w, text);
}

void pd_pickle_put_bool(struct pd_pickle_writer *w, const char *key, bool value)
{
    pd_pickle_put(w, key, value ? "\x88" : "\x89");
}

void pd_pickle_put_u64(struct pd_pickle_writer *w, const char *key, uint64_t value)
{
    if (key) pd_pickle_put_text(w, NULL, key);
    if (value <= INT32_MAX) {
        pd_pickle_do(w, "J");
        put_number(w, value, 4);
    } else { /* like Python: a ninth byte only if the eighth would look negative */
        const bool is_long = value > INT64_MAX;
        pd_pickle_do(w, is_long ? "\x8a\x09" : "\x8a\x08");
        put_number(w, value, 8);
        pickle_write_put(w, "", is_long);
    }
}

void pd_pickle_put_double(struct pd_pickle_writer *w, const char *key, double value)
{
    uint64_t bits;
    if (key) pd_pickle_put_text(w, NULL, key);
    memcpy(&bits, &value, sizeof bits);
    pd_pickle_do(w, "G");
    put_number(w, __builtin_bswap64(bits), sizeof bits);
}

void pd_pickle_put_global(struct pd_pickle_writer *w, const char *module, const char *name)
{
    pd_pickle_do(w, "c");
    pd_pickle_do(w, module);
    pd_pickle_do(w, "\n");
    pd_pickle_do(w, name);
    pd_pickle_do(w, "\n");
}

void pd_pickle_put_sizes(struct pd_pickle_writer *w, const uint64_t *sizes, uint32_t count)
{
    pd_pickle_do(w, "(");
    for (uint32_t i = 0; i < count; i++)
        pd_pickle_put_u64(w, NULL, sizes[i]);
    pd_pickle_do(w, "t");
}

void pd_pickle_object_begin(struct pd_pickle_writer *w, const char *module, const char *name)
{
    pd_pickle_put_global(w, module, name);
    pd_pickle_do(w, ")\x81}(");
}

void pd_pickle_object_end(struct pd_pickle_writer *w)
{
    pd_pickle_do(w, "ub");
}
