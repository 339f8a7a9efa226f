/* Writes torch.save files that torch.load(weights_only=True) reads: of one tensor, and small ones. */
#include "ckpt/base/digest.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/torch/archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum record { PICKLE, ORDER, DATA, VERSION };
static const char *const fixed[PD_TORCH_RECORDS] = {[ORDER] = "little", [VERSION] = "3\n"};

static const char *storage_of(enum pd_element element)
{
    static const char *const names[] = {
        [PD_ELEMENT_F64] = "DoubleStorage",    [PD_ELEMENT_F32] = "FloatStorage", [PD_ELEMENT_F16] = "HalfStorage",
        [PD_ELEMENT_BF16] = "BFloat16Storage", [PD_ELEMENT_I64] = "LongStorage",  [PD_ELEMENT_I32] = "IntStorage"};
    PD_CHECK((size_t)element < sizeof names / sizeof *names);
    return names[element];
}

/* Appends torch._utils._rebuild_tensor_v2(storage, 0, sizes, strides, False, OrderedDict()). */
void pd_torch_put_tensor(struct pd_pickle_writer *w, const struct pd_foreign_tensor *t)
{
    uint64_t strides[PD_FOREIGN_DIMS_MAX], stride = 1;
    for (uint32_t d = t->ndim; d-- > 0; stride *= t->shape[d])
        strides[d] = stride;
    pd_pickle_put_global(w, "torch._utils", "_rebuild_tensor_v2");
    pd_pickle_do(w, "((");
    pd_pickle_put_text(w, NULL, "storage");
    pd_pickle_put_global(w, "torch", storage_of(t->element));
    pd_pickle_put_text(w, NULL, "0");
    pd_pickle_put_text(w, NULL, "cpu");
    pd_pickle_put_u64(w, NULL, pd_foreign_elements(t));
    pd_pickle_do(w, "tQ");
    pd_pickle_put_u64(w, NULL, 0);
    pd_pickle_put_sizes(w, t->shape, t->ndim);
    pd_pickle_put_sizes(w, strides, t->ndim);
    pd_pickle_do(w, "\x89");
    pd_pickle_put_global(w, "collections", "OrderedDict");
    pd_pickle_do(w, ")RtR");
}

static const char *const names[PD_TORCH_RECORDS] = {"archive/data.pkl", "archive/byteorder", "archive/data/0",
                                                    "archive/version"};

static void set_record(struct pd_zip_record *record, enum record which, const void *text, uint64_t bytes)
{
    snprintf(record->name, sizeof record->name, "%s", names[which]);
    record->bytes = bytes;
    record->crc = text ? pd_crc32(0, text, bytes) : 0;
}

pd_status pd_torch_plan(const struct pd_foreign_tensor *tensor, const char *key, struct pd_torch_output *ret_output,
                        struct pd_error *err)
{
    struct pd_torch_output o = {0};
    struct pd_pickle_writer w = {0};
    pd_pickle_begin(&w);
    if (key) {
        pd_pickle_do(&w, "}(");
        pd_pickle_put_text(&w, NULL, key);
    }
    pd_torch_put_tensor(&w, tensor);
    if (key) pd_pickle_do(&w, "u");
    const pd_status st = pd_pickle_finish(&w, err);
    if (st) {
        pd_pickle_writer_deinit(&w);
        return st;
    }
    o.pickle = w.text;
    set_record(&o.records[PICKLE], PICKLE, w.text, w.bytes);
    set_record(&o.records[ORDER], ORDER, fixed[ORDER], strlen(fixed[ORDER]));
    set_record(&o.records[DATA], DATA, NULL, pd_foreign_bytes(tensor));
    set_record(&o.records[VERSION], VERSION, fixed[VERSION], strlen(fixed[VERSION]));
    o.bytes = pd_zip_place(o.records, PD_TORCH_RECORDS);
    o.data_offset = o.records[DATA].data_offset;
    *ret_output = o;
    return PD_OK;
}

/* Composes an archive without its data: headers, small entries and the directory, the last two `gap` bytes earlier. */
static pd_status compose(const struct pd_zip_record *records, const void *const *texts, uint32_t count, uint64_t bytes,
                         uint64_t gap, unsigned char **ret_text, struct pd_error *err)
{
    unsigned char *text = *ret_text = calloc(1, bytes - gap + 512); /* space for a header with all its padding */
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "no memory to write an archive");
    uint64_t closer = 0;
    for (uint32_t i = 0; i < count; i++) {
        pd_zip_header(&records[i], text + records[i].header_offset - closer);
        if (texts[i])
            memcpy(text + records[i].data_offset - closer, texts[i], records[i].bytes);
        else
            closer = gap;
    }
    const struct pd_zip_record *last = &records[count - 1];
    pd_zip_directory(records, count, text + last->data_offset + last->bytes - closer);
    return PD_OK;
}

/* Two writes: [begin, data), which ends with the tensor's header, and everything after the data. */
pd_status pd_torch_write(struct pd_torch_output *output, uint32_t crc, struct pd_file *file, uint64_t begin,
                         struct pd_error *err)
{
    struct pd_zip_record *r = output->records;
    const void *const texts[PD_TORCH_RECORDS] = {
        [PICKLE] = output->pickle, [ORDER] = fixed[ORDER], [VERSION] = fixed[VERSION]};
    const uint64_t front = output->data_offset, gap = r[DATA].bytes;
    unsigned char *text = NULL;
    r[DATA].crc = crc;
    PD_TRY(compose(r, texts, PD_TORCH_RECORDS, output->bytes, gap, &text, err));
    pd_status st = pd_file_write(file, begin, text, front, err);
    if (!st) st = pd_file_write(file, begin + front + gap, text + front, output->bytes - gap - front, err);
    free(text);
    return st;
}

void pd_torch_output_deinit(struct pd_torch_output *output)
{
    free(output->pickle);
    *output = (struct pd_torch_output){0};
}

pd_status pd_torch_make_small(const struct pd_pickle_writer *pickle, const void *data, uint64_t data_bytes, char **ret_text,
                              uint64_t *ret_bytes, struct pd_error *err)
{
    const struct {
        const void *text;
        uint64_t bytes;
    } all[PD_TORCH_RECORDS] = {[PICKLE] = {pickle->text, pickle->bytes},
                               [ORDER] = {fixed[ORDER], strlen(fixed[ORDER])},
                               [DATA] = {data, data_bytes},
                               [VERSION] = {fixed[VERSION], strlen(fixed[VERSION])}};
    struct pd_zip_record records[PD_TORCH_RECORDS] = {0};
    const void *texts[PD_TORCH_RECORDS];
    uint32_t count = 0;
    for (int i = 0; i < PD_TORCH_RECORDS; i++) {
        if (!all[i].text) continue; /* no tensor: no storage */
        texts[count] = all[i].text;
        set_record(&records[count++], (enum record)i, all[i].text, all[i].bytes);
    }
    *ret_bytes = pd_zip_place(records, count);
    return compose(records, texts, count, *ret_bytes, 0, (unsigned char **)ret_text, err);
}

pd_status pd_torch_write_small(struct pd_vfs *vfs, const char *path, const struct pd_pickle_writer *pickle, const void *data,
                               uint64_t data_bytes, struct pd_error *err)
{
    char *text = NULL;
    uint64_t bytes = 0;
    PD_TRY(pd_torch_make_small(pickle, data, data_bytes, &text, &bytes, err));
    const pd_status st = pd_formats_write_text(vfs, path, text, bytes, err);
    free(text);
    return st;
}
