/* Added tokens: found in the text first, as a whole. The leftmost longest match counts.
 *   threads  any, once all tokens are added */
#pragma once

#include "ckpt/base/digest.h"
#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>
#include <stdint.h>

struct pd_added_token {
    char *content, *normalized; /* owned; normalized: content after the normalizer; NULL: not normalized */
    uint32_t id;
    bool single_word, lstrip, rstrip, special;
};

struct pd_added_node { /* of a byte trie */
    uint32_t child, sibling;
    int32_t token; /* index; -1: none ends here */
    unsigned char byte;
};

struct pd_added_trie {
    struct pd_added_node *nodes; /* (count) node 0 is unused */
    uint32_t count, capacity;
    uint32_t first[256]; /* node by first byte; 0: none */
};

struct pd_added {
    struct pd_added_token *tokens; /* (count) */
    uint32_t count;
    struct pd_added_trie raw, normalized; /* tokens matched before, and after normalizing */
};

struct pd_added_match {
    size_t start, end; /* [start, end) of the text; start SIZE_MAX: no more */
    uint32_t id;
};

struct pd_added_cursor { /* zeroed: at the start of the text */
    size_t at, taken;
};

/* Builds the tries over tokens (count), which belong to `added` already. */
PD_MUST_USE pd_status pd_added_index(struct pd_added *added, struct pd_error *err);
void pd_added_deinit(struct pd_added *added);
void pd_added_digest(const struct pd_added *added, struct pd_digest_stream *stream);
/* The next match, including spaces for lstrip and rstrip. */
struct pd_added_match pd_added_next(const struct pd_added *added, const struct pd_added_trie *trie, const char *text,
                                    size_t bytes, struct pd_added_cursor *cursor);
const struct pd_added_token *pd_added_by_id(const struct pd_added *added, uint32_t id); /* NULL: none */
bool pd_added_is_special(const struct pd_added *added, const char *text, size_t bytes);
