#include "trainer/tokenizer/added.h"

#include "trainer/tokenizer/matcher.h"
#include "trainer/tokenizer/unicode.h"

/* ---- the trie ---- */

static pd_status node_new(struct pd_added_trie *trie, unsigned char byte, uint32_t *ret_node, struct pd_error *err)
{
    if (trie->count + 1 >= trie->capacity) {
        const uint32_t capacity = 2 * trie->capacity + 64;
        struct pd_added_node *grown = realloc(trie->nodes, capacity * sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for added tokens");
        trie->nodes = grown;
        trie->capacity = capacity;
    }
    *ret_node = ++trie->count;
    trie->nodes[*ret_node] = (struct pd_added_node){.token = -1, .byte = byte};
    return PD_OK;
}

static uint32_t child_of(const struct pd_added_trie *trie, uint32_t node, unsigned char byte)
{
    uint32_t child = trie->nodes[node].child;
    while (child && trie->nodes[child].byte != byte)
        child = trie->nodes[child].sibling;
    return child;
}

static pd_status trie_add(struct pd_added_trie *trie, const char *text, int32_t token, struct pd_error *err)
{
    uint32_t node = trie->first[(unsigned char)*text];
    if (!node) PD_TRY(node_new(trie, (unsigned char)*text, &node, err));
    trie->first[(unsigned char)*text] = node;
    for (const char *at = text + 1; *at; at++) {
        uint32_t child = child_of(trie, node, (unsigned char)*at);
        if (!child) {
            PD_TRY(node_new(trie, (unsigned char)*at, &child, err));
            trie->nodes[child].sibling = trie->nodes[node].child;
            trie->nodes[node].child = child;
        }
        node = child;
    }
    trie->nodes[node].token = token;
    return PD_OK;
}

/* The longest token at the start of the text; -1: none. */
static int32_t longest(const struct pd_added_trie *trie, const char *text, size_t bytes, size_t *ret_bytes)
{
    int32_t best = -1;
    uint32_t node = trie->first[(unsigned char)*text];
    for (size_t at = 1; node; at++) {
        if (trie->nodes[node].token >= 0) {
            best = trie->nodes[node].token;
            *ret_bytes = at;
        }
        node = at < bytes ? child_of(trie, node, (unsigned char)text[at]) : 0;
    }
    return best;
}

pd_status pd_added_index(struct pd_added *added, struct pd_error *err)
{
    for (uint32_t i = 0; i < added->count; i++) {
        const struct pd_added_token *token = &added->tokens[i];
        const char *text = token->normalized ? token->normalized : token->content;
        if (!*text) continue;
        PD_TRY(trie_add(token->normalized ? &added->normalized : &added->raw, text, (int32_t)i, err));
    }
    return PD_OK;
}

void pd_added_deinit(struct pd_added *added)
{
    for (uint32_t i = 0; i < added->count; i++) {
        free(added->tokens[i].content);
        free(added->tokens[i].normalized);
    }
    free(added->tokens);
    free(added->raw.nodes);
    free(added->normalized.nodes);
    *added = (struct pd_added){0};
}

void pd_added_digest(const struct pd_added *added, struct pd_digest_stream *stream)
{
    pd_digest_number(stream, added->count);
    for (uint32_t i = 0; i < added->count; i++) {
        const struct pd_added_token *token = &added->tokens[i];
        pd_digest_number(stream, token->id);
        pd_digest_text(stream, token->content, strlen(token->content));
        pd_digest_number(stream, 8u * token->single_word + 4u * token->lstrip + 2u * token->rstrip + !!token->normalized);
    }
}

/* ---- matches ---- */

static bool stands_alone(const char *text, size_t bytes, size_t start, size_t end)
{
    unsigned length;
    if (start && pd_unicode_is_word(pd_unicode_at(text + start - pd_unicode_last_bytes(text, start), &length))) return false;
    return end == bytes || !pd_unicode_is_word(pd_unicode_at(text + end, &length));
}

static size_t spaces_before(const char *text, size_t start)
{
    unsigned length;
    while (start) {
        const unsigned last = pd_unicode_last_bytes(text, start);
        if (!pd_unicode_is_space(pd_unicode_at(text + start - last, &length))) break;
        start -= last;
    }
    return start;
}

static size_t spaces_behind(const char *text, size_t bytes, size_t end)
{
    unsigned length;
    while (end < bytes && pd_unicode_is_space(pd_unicode_at(text + end, &length)))
        end += length;
    return end;
}

struct pd_added_match pd_added_next(const struct pd_added *added, const struct pd_added_trie *trie, const char *text,
                                    size_t bytes, struct pd_added_cursor *cursor)
{
    while (trie->count) {
        while (cursor->at < bytes && !trie->first[(unsigned char)text[cursor->at]])
            cursor->at++;
        if (cursor->at == bytes) break;
        size_t length, start = cursor->at;
        const int32_t index = longest(trie, text + start, bytes - start, &length);
        if (index < 0) {
            cursor->at++;
            continue;
        }
        size_t end = cursor->at = start + length;
        const struct pd_added_token *token = &added->tokens[index];
        if (token->single_word && !stands_alone(text, bytes, start, end)) continue;
        if (token->lstrip) start = spaces_before(text, start);
        if (start < cursor->taken) start = cursor->taken < end ? cursor->taken : end;
        if (token->rstrip) end = spaces_behind(text, bytes, end);
        if (token->lstrip && end <= cursor->taken) continue; /* nothing is left of it: the reference skips it */
        cursor->taken = end;
        return (struct pd_added_match){start, end, token->id};
    }
    return (struct pd_added_match){.start = SIZE_MAX};
}

const struct pd_added_token *pd_added_by_id(const struct pd_added *added, uint32_t id)
{
    for (uint32_t i = 0; i < added->count; i++)
        if (added->tokens[i].id == id) return &added->tokens[i];
    return NULL;
}

bool pd_added_is_special(const struct pd_added *added, const char *text, size_t bytes)
{
    for (uint32_t i = 0; i < added->count; i++)
        if (added->tokens[i].special && strlen(added->tokens[i].content) == bytes &&
            !memcmp(added->tokens[i].content, text, bytes))
            return true;
    return false;
}
