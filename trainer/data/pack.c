#include "trainer/data/pack.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/grow.h"
#include "trainer/data/file_writer.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/token_format.h"
#include "trainer/data/token_loss.h"
#include "trainer/data/token_origin.h"
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- documents into tokens ---- */

#define BATCH_DOCUMENTS 65536u

struct document {
    size_t start, bytes; /* in the batch's text */
    bool has_turns, is_rendered;
    uint32_t first_cut, cut_count; /* of its turns, in the batch's cuts */
    uint32_t worker;               /* that encoded it */
    size_t first, token_count;     /* in that worker's tokens */
};

struct worker { /* one index of the pool's loop has it */
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens tokens;
    unsigned char *learned; /* (learned_capacity) of `tokens`, for documents with turns */
    size_t learned_capacity;
    size_t *ends; /* (end_capacity) of the tokens of one document */
    size_t end_capacity;
    struct pd_error error;
    pd_status status;
};

struct pd_encoder {
    const struct pd_tokenizer *tokenizer;
    struct pd_thread_pool *pool;
    struct pd_encoder_sink sink;
    struct worker *workers; /* (worker_count) */
    uint32_t worker_count;
    struct document *documents; /* (BATCH_DOCUMENTS) */
    uint32_t document_count;
    size_t open_start; /* of the document that has not ended */
    struct pd_string text;
    uint32_t *cuts; /* (cut_count) owned */
    uint32_t cut_count;
    _Atomic uint32_t next; /* next document to take; workers increment it */
};

pd_status pd_encoder_new(const struct pd_tokenizer *tokenizer, struct pd_thread_pool *pool,
                         const struct pd_encoder_sink *sink, struct pd_encoder **ret_encoder, struct pd_error *err)
{
    struct pd_encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) PD_FAIL(err, PD_NO_MEMORY, "no memory to encode documents");
    encoder->tokenizer = tokenizer;
    encoder->pool = pool;
    encoder->sink = *sink;
    encoder->worker_count = pd_thread_pool_size(pool);
    encoder->workers = calloc(encoder->worker_count, sizeof *encoder->workers);
    encoder->documents = calloc(BATCH_DOCUMENTS, sizeof *encoder->documents);
    pd_status status = PD_OK;
    if (!encoder->workers || !encoder->documents)
        status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to encode documents");
    for (uint32_t i = 0; !status && i < encoder->worker_count; i++)
        status = pd_tokenizer_scratch_new(tokenizer, &encoder->workers[i].scratch, err);
    if (status) {
        pd_encoder_free(encoder);
        return status;
    }
    *ret_encoder = encoder;
    return PD_OK;
}

void pd_encoder_free(struct pd_encoder *encoder)
{
    if (!encoder) return;
    for (uint32_t i = 0; encoder->workers && i < encoder->worker_count; i++) {
        pd_tokenizer_scratch_free(encoder->workers[i].scratch);
        pd_tokens_deinit(&encoder->workers[i].tokens);
        free(encoder->workers[i].learned);
        free(encoder->workers[i].ends);
    }
    free(encoder->workers);
    free(encoder->documents);
    pd_string_deinit(&encoder->text);
    free(encoder->cuts);
    free(encoder);
}

static pd_status pack_reserve(void *items, size_t *capacity, size_t count, size_t bytes, struct pd_error *err)
{
    void **array = items;
    if (count <= *capacity) return PD_OK;
    void *grown = reallocarray(*array, 2 * count, bytes);
    if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for the turns of %zu tokens", count);
    *array = grown;
    *capacity = 2 * count;
    return PD_OK;
}

/* Whether a turn with a loss has any of the bytes from `begin` to `end`. *turn: of the token before; it only grows. */
static bool is_learned(const uint32_t *cuts, uint32_t count, uint32_t *turn, size_t begin, size_t end)
{
    while (*turn < count && cuts[*turn] <= begin)
        ++*turn;
    const bool is_inside = *turn % 2, goes_on = *turn < count && cuts[*turn] < end; /* into the next, of the other kind */
    if (begin == end) return is_inside && cuts[*turn - 1] < begin; /* a space that the tokenizer put there */
    return is_inside || goes_on;
}

/* Which tokens of a document with turns have a loss. A rendered text has the template's tokens already. */
static pd_status mark_learned(struct pd_encoder *e, struct worker *w, const struct document *d)
{
    const char *text = e->text.bytes + d->start;
    const uint32_t *cuts = e->cuts + d->first_cut;
    size_t before = 0, behind = 0, count = w->tokens.count - d->first;
    uint32_t turn = 0;
    PD_TRY(pack_reserve(&w->ends, &w->end_capacity, count, sizeof *w->ends, &w->error));
    PD_TRY(pack_reserve(&w->learned, &w->learned_capacity, w->tokens.count, 1, &w->error));
    PD_TRY(pd_tokenizer_align(e->tokenizer, text, d->bytes, w->tokens.ids + d->first, count, w->ends, &w->error));
    for (size_t i = 0; i < count; i++)
        w->learned[d->first + i] = is_learned(cuts, d->cut_count, &turn, i ? w->ends[i - 1] : 0, w->ends[i]);
    pd_tokenizer_template(e->tokenizer, &before, &behind);
    for (size_t i = count - behind; i < count; i++)
        w->learned[d->first + i] = d->cut_count % 2; /* ends the last turn */
    if (!d->is_rendered || !(before + behind)) return PD_OK;
    count -= before + behind;
    memmove(w->tokens.ids + d->first, w->tokens.ids + d->first + before, count * sizeof *w->tokens.ids);
    memmove(w->learned + d->first, w->learned + d->first + before, count);
    w->tokens.count = d->first + count;
    return PD_OK;
}

static void encode_some(void *context, uint64_t index)
{
    struct pd_encoder *e = context;
    struct worker *w = &e->workers[index];
    w->tokens.count = 0;
    w->status = PD_OK;
    while (!w->status) {
        const uint32_t number = atomic_fetch_add(&e->next, 1);
        if (number >= e->document_count) return;
        struct document *d = &e->documents[number];
        d->worker = (uint32_t)index;
        d->first = w->tokens.count;
        if (d->bytes)
            w->status = pd_tokenizer_encode(e->tokenizer, w->scratch, e->text.bytes + d->start, d->bytes, false, &w->tokens,
                                            &w->error);
        if (d->bytes && d->has_turns && !w->status) w->status = mark_learned(e, w, d);
        d->token_count = w->tokens.count - d->first;
    }
}

pd_status pd_encoder_flush(struct pd_encoder *e, struct pd_error *err)
{
    atomic_store(&e->next, 0);
    pd_parallel(e->pool, e->worker_count, encode_some, e);
    for (uint32_t i = 0; i < e->worker_count; i++)
        if (e->workers[i].status) {
            if (err) *err = e->workers[i].error;
            return e->workers[i].status;
        }
    for (uint32_t i = 0; i < e->document_count; i++) {
        const struct document *d = &e->documents[i];
        const struct worker *w = &e->workers[d->worker];
        PD_TRY(e->sink.take(e->sink.context, w->tokens.ids + d->first, d->has_turns ? w->learned + d->first : NULL,
                            d->token_count, err));
    }
    const size_t open_bytes = e->text.count - e->open_start;
    if (open_bytes) memmove(e->text.bytes, e->text.bytes + e->open_start, open_bytes);
    pd_string_cut(&e->text, open_bytes);
    e->open_start = e->document_count = e->cut_count = 0;
    return PD_OK;
}

static pd_status add_turns(struct pd_encoder *e, const char *text, size_t bytes, const struct pd_turns *turns,
                           struct pd_error *err)
{
    size_t at = 0;
    for (uint32_t i = 0; i < turns->count; at = turns->cuts[i++]) {
        PD_TRY(pd_tokenizer_compose(e->tokenizer, text + at, turns->cuts[i] - at, &e->text, err));
        if (!pd_grow(&e->cuts, e->cut_count, sizeof *e->cuts)) PD_FAIL(err, PD_NO_MEMORY, "no memory for turns");
        e->cuts[e->cut_count++] = (uint32_t)(e->text.count - e->open_start);
    }
    return pd_tokenizer_compose(e->tokenizer, text + at, bytes - at, &e->text, err);
}

pd_status pd_encoder_add(struct pd_encoder *e, const char *text, size_t bytes, bool ends, const struct pd_turns *turns,
                         struct pd_error *err)
{
    if (e->open_start && e->text.count + bytes > PD_STRING_BYTES_MAX) PD_TRY(pd_encoder_flush(e, err));
    if (e->text.count - e->open_start + bytes > PD_TOKENIZER_DOCUMENT_BYTES_MAX)
        PD_FAIL(err, PD_INVALID,
                "a document is longer than 1 GiB; split it: --separator names what stands between documents");
    struct document d = {.start = e->open_start, .has_turns = turns, .first_cut = e->cut_count};
    PD_TRY(turns ? add_turns(e, text, bytes, turns, err) : pd_string_add(&e->text, text, bytes, err));
    if (!ends) return PD_OK;
    d.bytes = e->text.count - e->open_start;
    d.cut_count = e->cut_count - d.first_cut;
    d.is_rendered = turns && turns->is_rendered;
    e->documents[e->document_count++] = d;
    e->open_start = e->text.count;
    return e->document_count == BATCH_DOCUMENTS || e->text.count >= PD_ENCODE_BATCH_BYTES ? pd_encoder_flush(e, err) : PD_OK;
}

/* ---- inspect ---- */

#define COUNTED_TOKENS (1u << 22)
#define CHUNK_TOKENS 8192u

/* Fills counts[token] for every token of the file; all are below the array's length. */
static pd_status count_tokens(const struct pd_token_file *file, uint64_t *counts, struct pd_error *err)
{
    int32_t tokens[CHUNK_TOKENS];
    for (uint64_t at = 0; at < file->token_count;) {
        uint64_t left = file->token_count - at;
        uint32_t count = left < CHUNK_TOKENS ? (uint32_t)left : CHUNK_TOKENS;
        PD_TRY(pd_token_file_read(file, at, count, tokens, err));
        for (uint32_t i = 0; i < count; i++)
            counts[(uint32_t)tokens[i] % COUNTED_TOKENS]++;
        at += count;
    }
    return PD_OK;
}

/* Inserts into the list of the most frequent; tokens come in ascending order. */
static void top_insert(struct pd_data_inspection *inspection, int64_t token, uint64_t count)
{
    uint32_t at = inspection->top_count;
    if (at == PD_INSPECT_TOP) {
        if (count <= inspection->top[at - 1].count) return;
        at--;
    } else {
        inspection->top_count++;
    }
    while (at > 0 && inspection->top[at - 1].count < count) {
        inspection->top[at] = inspection->top[at - 1];
        at--;
    }
    inspection->top[at].token = token;
    inspection->top[at].count = count;
}

static pd_status inspect_file(int64_t document_token, struct pd_data_inspection *x, struct pd_error *err)
{
    PD_TRY(pd_token_file_scan(&x->file, 0, NULL, &x->scan, err));
    x->documents = x->file.document_count;
    x->first_count = x->file.token_count < PD_INSPECT_FIRST ? (uint32_t)x->file.token_count : PD_INSPECT_FIRST;
    PD_TRY(pd_token_file_read(&x->file, 0, x->first_count, x->first, err));
    if (x->scan.min < 0 || x->scan.max >= (int64_t)COUNTED_TOKENS) return PD_OK;
    uint64_t *counts = calloc(COUNTED_TOKENS, sizeof *counts); /* untouched pages of it are never allocated */
    if (!counts) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to count tokens", x->file.path);
    pd_status status = count_tokens(&x->file, counts, err);
    for (int64_t token = x->scan.min; !status && token <= x->scan.max; token++) {
        if (!counts[token]) continue;
        x->distinct++;
        top_insert(x, token, counts[token]);
        if (token == document_token && x->file.format != PD_DATA_MEGATRON) x->documents = counts[token];
    }
    free(counts);
    return status;
}

pd_status pd_data_inspect(const char *path, enum pd_data_format format, int64_t document_token,
                          struct pd_data_inspection *ret_inspection, struct pd_error *err)
{
    struct pd_data_inspection inspection = {0};
    PD_TRY(pd_token_file_open(path, format, &inspection.file, err));
    pd_status status = inspect_file(document_token, &inspection, err);
    if (!status) status = pd_token_origin_read(inspection.file.path, &inspection.tokenizer, err);
    if (status) pd_token_file_close(&inspection.file);
    if (!status) *ret_inspection = inspection;
    return status;
}

void pd_data_inspection_deinit(struct pd_data_inspection *inspection)
{
    if (inspection) pd_token_file_close(&inspection->file);
}

/* ---- pack ---- */

#define SEPARATOR_BYTES_MAX (PD_DOCUMENTS_PIECE_MAX / 2 - 1)
#define BYTE_TOKENS 256
#define CONVERT_TOKENS 16384u

struct packer {
    const struct pd_pack_options *options;
    struct pd_file_writer tokens, index; /* index: Megatron */
    enum pd_token_type type;
    struct pd_pack_result result;
    uint64_t document_tokens;   /* of the document that is open */
    int32_t *lengths;           /* (documents) tokens, for the index */
    unsigned char *converted;   /* (CONVERT_TOKENS) of the widest type */
    struct pd_encoder *encoder; /* NULL: tokens are bytes */
    struct pd_loss_writer loss; /* with turns */
    bool ends_learned;          /* the document so far */
};

/* ---- tokens ---- */

static bool is_encoded(const struct pd_pack_options *options)
{
    return options->tokenizer && !pd_tokenizer_is_bytes(options->tokenizer);
}

static int64_t largest_token(const struct pd_pack_options *options)
{
    const int64_t last = is_encoded(options) ? (int64_t)pd_tokenizer_vocab(options->tokenizer) - 1 : BYTE_TOKENS - 1;
    return options->document_token > last ? options->document_token : last;
}

static enum pd_token_type choose_type(const struct pd_pack_options *options)
{
    int64_t token = largest_token(options);
    switch (options->format) {
    case PD_DATA_MEGATRON:
        return token < BYTE_TOKENS ? PD_TOKEN_U8 : token <= UINT16_MAX ? PD_TOKEN_U16 : PD_TOKEN_I32;
    case PD_DATA_LLMC:
        return token <= UINT16_MAX ? PD_TOKEN_U16 : PD_TOKEN_U32;
    default:
        return PD_TOKEN_U16;
    }
}

/* learned (count) NULL: all have a loss. */
static pd_status put_ids(struct packer *packer, const int32_t *ids, const unsigned char *learned, size_t count,
                         struct pd_error *err)
{
    const uint32_t width = pd_token_bytes(packer->type);
    if (packer->options->turns[0]) PD_TRY(pd_loss_writer_add(&packer->loss, learned, count, err));
    if (count) packer->ends_learned = !learned || learned[count - 1];
    packer->document_tokens += count;
    while (count) {
        const size_t part = count < CONVERT_TOKENS ? count : CONVERT_TOKENS;
        for (size_t i = 0; i < part; i++)
            for (uint32_t byte = 0; byte < width; byte++)
                packer->converted[i * width + byte] = (unsigned char)((uint32_t)ids[i] >> 8 * byte);
        PD_TRY(pd_file_writer_add(&packer->tokens, packer->converted, part * width, err));
        ids += part;
        count -= part;
    }
    return PD_OK;
}

static pd_status put_text(struct packer *packer, const struct pd_document_piece *piece, struct pd_error *err)
{
    int32_t ids[1024];
    unsigned char learned[1024];
    uint32_t turn = 0;
    for (size_t at = 0, part; at < piece->bytes; at += part) {
        part = piece->bytes - at < sizeof learned ? piece->bytes - at : sizeof learned;
        for (size_t i = 0; i < part; i++) {
            ids[i] = (unsigned char)piece->text[at + i];
            if (piece->turns) learned[i] = is_learned(piece->turns->cuts, piece->turns->count, &turn, at + i, at + i + 1);
        }
        PD_TRY(put_ids(packer, ids, piece->turns ? learned : NULL, part, err));
    }
    return PD_OK;
}

static pd_status note_length(struct packer *packer, struct pd_error *err)
{
    if (packer->options->format != PD_DATA_MEGATRON) return PD_OK;
    if (packer->document_tokens > INT32_MAX)
        PD_FAIL(err, PD_INVALID,
                "a document of %" PRIu64 " tokens is too long for Megatron's index; split it with a separator",
                packer->document_tokens);
    if (!pd_grow(&packer->lengths, packer->result.documents, sizeof *packer->lengths))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the lengths of %" PRIu64 " documents", packer->result.documents + 1);
    packer->lengths[packer->result.documents] = (int32_t)packer->document_tokens;
    return PD_OK;
}

static pd_status end_document(struct packer *packer, struct pd_error *err)
{
    if (packer->document_tokens == 0) {
        packer->result.empty_documents++;
        return PD_OK;
    }
    if (packer->options->document_token >= 0)
        PD_TRY(put_ids(packer, &(int32_t){(int32_t)packer->options->document_token}, &(unsigned char){packer->ends_learned},
                       1, err));
    PD_TRY(note_length(packer, err));
    packer->result.tokens += packer->document_tokens;
    packer->result.documents++;
    packer->document_tokens = 0;
    if (packer->options->format == PD_DATA_LLMC && packer->result.tokens > INT32_MAX)
        PD_FAIL(err, PD_INVALID, "more than %d tokens do not fit a file of llm.c; write several", INT32_MAX);
    return PD_OK;
}

/* ---- inputs ---- */

static pd_status take_document(void *context, const int32_t *ids, const unsigned char *learned, size_t count,
                               struct pd_error *err)
{
    PD_TRY(put_ids(context, ids, learned, count, err));
    return end_document(context, err);
}

static pd_status take_pieces(struct packer *packer, const struct pd_document_piece *pieces, uint32_t count,
                             struct pd_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        if (packer->encoder) {
            PD_TRY(pd_encoder_add(packer->encoder, pieces[i].text, pieces[i].bytes, pieces[i].ends, pieces[i].turns, err));
            continue;
        }
        PD_TRY(put_text(packer, &pieces[i], err));
        if (pieces[i].ends) PD_TRY(end_document(packer, err));
    }
    return PD_OK;
}

/* "3 files had CRLF at the ends of lines, a.txt first: LF was written" */
static void note_files(FILE *out, const struct pd_documents *documents, uint32_t count, uint32_t first, const char *what)
{
    if (count == 1) fprintf(out, "%s %s\n", pd_documents_path(documents, first), what);
    if (count > 1) fprintf(out, "%u files, the first %s, %s\n", count, pd_documents_path(documents, first), what);
}

static pd_status take_notes(struct packer *packer, const struct pd_documents *documents, struct pd_error *err)
{
    const struct pd_documents_progress seen = pd_documents_progress(documents);
    const char *note;
    size_t bytes;
    FILE *out = open_memstream(&packer->result.notes, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "no memory for packing");
    for (uint32_t i = 0; (note = pd_documents_note(documents, i)); i++)
        fprintf(out, "%s\n", note);
    note_files(out, documents, seen.marked_files, seen.first_marked, "had a byte order mark, which was dropped");
    note_files(out, documents, seen.crlf_files, seen.first_crlf, "had lines that end in CRLF: LF was written");
    fclose(out);
    packer->result.input_bytes = seen.stored_bytes;
    return PD_OK;
}

static pd_status pack_documents(struct packer *packer, struct pd_documents *documents, struct pd_error *err)
{
    const struct pd_pack_options *options = packer->options;
    const struct pd_document_piece *pieces;
    uint32_t count;
    do {
        PD_TRY(pd_stop_check(options->should_stop, "data.pack.piece", err));
        PD_TRY(pd_documents_next(documents, &pieces, &count, err));
        PD_TRY(take_pieces(packer, pieces, count, err));
        const struct pd_documents_progress seen = pd_documents_progress(documents);
        if (options->progress) options->progress(options->progress_context, seen.stored_bytes, seen.stored_bytes_total);
    } while (count);
    if (packer->encoder) PD_TRY(pd_encoder_flush(packer->encoder, err));
    return take_notes(packer, documents, err);
}

static pd_status pack_with(struct packer *packer, struct pd_thread_pool *pool, struct pd_error *err)
{
    const struct pd_documents_options options = {.inputs = packer->options->inputs,
                                                 .input_count = packer->options->input_count,
                                                 .field = packer->options->field,
                                                 .turns = {packer->options->turns[0], packer->options->turns[1]},
                                                 .is_rendered = packer->options->is_rendered,
                                                 .separator = packer->options->separator,
                                                 .pool = pool};
    const struct pd_encoder_sink sink = {take_document, packer};
    struct pd_documents *documents;
    if (is_encoded(packer->options)) PD_TRY(pd_encoder_new(packer->options->tokenizer, pool, &sink, &packer->encoder, err));
    PD_TRY(pd_documents_open(&options, &documents, err));
    pd_status status = pack_documents(packer, documents, err);
    pd_documents_close(documents);
    return status;
}

/* ---- headers and names ---- */

static pd_status put_llmc_header(struct packer *packer, bool patch, struct pd_error *err)
{
    uint32_t header[PD_LLMC_HEADER_BYTES / 4] = {0};
    bool wide = packer->type == PD_TOKEN_U32;
    header[0] = wide ? PD_LLMC_MAGIC_U32 : PD_LLMC_MAGIC_U16;
    header[1] = wide ? PD_LLMC_VERSION_U32 : PD_LLMC_VERSION_U16;
    header[2] = (uint32_t)packer->result.tokens;
    if (patch) return pd_file_writer_patch(&packer->tokens, 0, header, sizeof header, err);
    return pd_file_writer_add(&packer->tokens, header, sizeof header, err);
}

static pd_status put_index(struct packer *packer, struct pd_error *err)
{
    const uint64_t version = 1, sequences = packer->result.documents, bounds = sequences + 1;
    const unsigned char type = (unsigned char)packer->type;
    PD_TRY(pd_file_writer_add(&packer->index, PD_MEGATRON_MAGIC, PD_MEGATRON_MAGIC_BYTES, err));
    PD_TRY(pd_file_writer_add(&packer->index, &version, sizeof version, err));
    PD_TRY(pd_file_writer_add(&packer->index, &type, sizeof type, err));
    PD_TRY(pd_file_writer_add(&packer->index, &sequences, sizeof sequences, err));
    PD_TRY(pd_file_writer_add(&packer->index, &bounds, sizeof bounds, err));
    uint64_t documents = packer->result.documents, offset = 0;
    PD_TRY(pd_file_writer_add(&packer->index, packer->lengths, documents * sizeof *packer->lengths, err));
    for (uint64_t i = 0; i < documents; i++) {
        PD_TRY(pd_file_writer_add(&packer->index, &offset, sizeof offset, err));
        offset += (uint64_t)packer->lengths[i] * pd_token_bytes(packer->type);
    }
    for (uint64_t i = 0; i <= documents; i++)
        PD_TRY(pd_file_writer_add(&packer->index, &i, sizeof i, err));
    return pd_file_writer_seal(&packer->index, err);
}

/* Takes `path` over. */
static pd_status begin_output(const struct packer *packer, char *path, struct pd_file_writer *ret_writer,
                              struct pd_error *err)
{
    pd_status status = PD_OK;
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its name", packer->options->output);
    if (!packer->options->overwrite && access(path, F_OK) == 0)
        status =
            pd_error_set(err, PD_EXISTS, PD_WHERE, 0, "%s exists already; name another output or allow overwriting", path);
    if (!status) status = pd_file_writer_begin(path, ret_writer, err);
    free(path);
    return status;
}

static pd_status begin_outputs(struct packer *packer, struct pd_error *err)
{
    const char *output = packer->options->output;
    const bool is_paired = packer->options->format == PD_DATA_MEGATRON;
    PD_TRY(begin_output(packer, is_paired ? pd_megatron_path(output, ".bin") : strdup(output), &packer->tokens, err));
    if (packer->options->turns[0]) PD_TRY(pd_loss_writer_begin(packer->tokens.path, &packer->loss, err));
    return is_paired ? begin_output(packer, pd_megatron_path(output, ".idx"), &packer->index, err) : PD_OK;
}

static pd_status pack_all(struct packer *packer, struct pd_error *err)
{
    const struct pd_pack_options *options = packer->options;
    packer->converted = malloc(CONVERT_TOKENS * sizeof(uint32_t));
    if (!packer->converted) PD_FAIL(err, PD_NO_MEMORY, "no memory for packing");
    PD_TRY(begin_outputs(packer, err));
    if (options->format == PD_DATA_LLMC) PD_TRY(put_llmc_header(packer, false, err));
    struct pd_thread_pool *pool;
    PD_TRY(pd_thread_pool_new(pd_cpu_cores(), &pool, err));
    pd_status status = pack_with(packer, pool, err);
    pd_encoder_free(packer->encoder);
    pd_thread_pool_free(pool);
    PD_TRY(status);
    if (packer->result.documents == 0) PD_FAIL(err, PD_INVALID, "the inputs hold no text: nothing is written");
    if (options->format == PD_DATA_LLMC) PD_TRY(put_llmc_header(packer, true, err));
    PD_TRY(pd_file_writer_seal(&packer->tokens, err));
    if (options->format == PD_DATA_MEGATRON) PD_TRY(put_index(packer, err));
    if (options->turns[0]) PD_TRY(pd_loss_writer_end(&packer->loss, err));
    packer->result.learned = options->turns[0] ? packer->loss.learned : packer->result.tokens;
    packer->result.output_bytes = packer->tokens.bytes + packer->index.bytes + packer->loss.file.bytes;
    /* A .bin must never be beside an index of other content: remove the old index first, write the new one last. */
    bool paired = packer->options->format == PD_DATA_MEGATRON;
    if (paired && unlink(packer->index.path) != 0 && errno != ENOENT)
        PD_FAIL_ERRNO(err, errno, "removing %s", packer->index.path);
    PD_TRY(pd_token_loss_remove(packer->tokens.path, err));
    if (options->turns[0]) {
        if (unlink(packer->tokens.path) != 0 && errno != ENOENT)
            PD_FAIL_ERRNO(err, errno, "removing %s", packer->tokens.path);
        PD_TRY(pd_file_writer_commit(&packer->loss.file, err));
    }
    PD_TRY(pd_token_origin_write(packer->tokens.path, packer->options->tokenizer, err));
    PD_TRY(pd_file_writer_commit(&packer->tokens, err));
    return paired ? pd_file_writer_commit(&packer->index, err) : PD_OK;
}

pd_status pd_data_pack(const struct pd_pack_options *options, struct pd_pack_result *ret_result, struct pd_error *err)
{
    if (options->input_count == 0) PD_FAIL(err, PD_INVALID, "no input file is named");
    if (!options->output || !*options->output) PD_FAIL(err, PD_INVALID, "no output file is named");
    if (options->format != PD_DATA_NANOGPT && options->format != PD_DATA_LLMC && options->format != PD_DATA_MEGATRON)
        PD_FAIL(err, PD_INVALID, "format %s cannot be written; nanogpt, llmc and megatron can",
                pd_data_format_name(options->format));
    int64_t largest = options->format == PD_DATA_NANOGPT ? UINT16_MAX : INT32_MAX;
    if (options->document_token > largest)
        PD_FAIL(err, PD_INVALID, "document token %" PRId64 " does not fit format %s, which holds up to %" PRId64,
                options->document_token, pd_data_format_name(options->format), largest);
    if (largest_token(options) > largest)
        PD_FAIL(err, PD_INVALID,
                "the tokenizer has %" PRIu32 " tokens and format %s holds %" PRId64 "; pack with --format=megatron or llmc",
                pd_tokenizer_vocab(options->tokenizer), pd_data_format_name(options->format), largest + 1);
    if (options->separator && !*options->separator) PD_FAIL(err, PD_INVALID, "the separator of documents is empty");
    if (options->separator && strlen(options->separator) > SEPARATOR_BYTES_MAX)
        PD_FAIL(err, PD_INVALID, "the separator of documents is longer than %u bytes", SEPARATOR_BYTES_MAX);
    struct packer packer = {.options = options, .type = choose_type(options)};
    packer.result.format = options->format;
    packer.result.type_name = pd_token_type_name(packer.type);
    pd_status status = pack_all(&packer, err);
    pd_file_writer_abort(&packer.tokens, err);
    pd_file_writer_abort(&packer.index, err);
    pd_file_writer_abort(&packer.loss.file, err);
    free(packer.lengths);
    free(packer.converted);
    if (status)
        free(packer.result.notes);
    else
        *ret_result = packer.result;
    return status;
}

void pd_pack_result_deinit(struct pd_pack_result *result)
{
    free(result->notes);
    result->notes = NULL;
}
