/* Shared by the reader of GGUF (gguf.c) and what makes a config.json of its metadata (gguf_config.c). */
#pragma once

#include "ckpt/base/json.h"
#include "resharder/catalog/catalog.h"
#include "resharder/formats/gguf_keys.h"

#define KEYS_MAX 512

/* A metadata value outside the tokenizer. */
struct pair {
    char key[256];
    enum pd_gguf_type type;
    double number; /* for an array its length */
    double first;  /* for an array of numbers */
    char text[64]; /* why an array is not one number for all layers; "": all its numbers are equal */
};

struct gguf {
    struct pd_file *file;
    const char *path;
    uint64_t bytes, at; /* size of the file; next offset to read */
    unsigned char window[65536];
    uint64_t window_begin, window_end;
    struct pd_catalog *catalog;
    uint32_t version, alignment;
    struct pair pairs[KEYS_MAX]; /* (pair_count) */
    uint32_t pair_count;
    struct pd_json_writer tokenizer;
    bool has_tokenizer;      /* more than the two ids */
    double number, bos, eos; /* last one from put_value; ids, below zero: none */
    char *text;              /* (text_bytes) string read last, terminated; owned */
    uint64_t text_bytes, text_capacity;
    float rope_factors[PD_GGUF_ROPE_FACTORS_MAX]; /* (rope_count) */
    uint64_t rope_count;
};

/* ---- gguf_config.c ---- */

/* NULL: there is no such key. */
const struct pair *gguf_find_whole(const struct gguf *g, const char *key);
/* Absent, a text or a list: `absent`. */
double gguf_number_of(const struct pair *p, double absent);
PD_MUST_USE pd_status gguf_put_config(struct gguf *g, struct pd_json_writer *w, struct pd_error *err);
