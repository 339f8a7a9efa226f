/* torch.save of one tensor, as torch.load(weights_only=True) wants it. */
#include "ckpt/base/checked.h"
#include "resharder/formats/pickle_write.h"
#include "resharder/formats/torch_archive.h"

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

/* torch._utils._rebuild_tensor_v2(storage, 0, sizes, strides, False, OrderedDict()) */
static void put_tensor(struct pd_pickle_writer *w, const struct pd_foreign_tensor *t)
{
    uint64_t strides[PD_FOREIGN_DIMS_MAX], stride = 1;
    for (uint32_t d = t->ndim; d-- > 0; stride *= t->shape[d])
        strides[d] = stride;
    pd_pickle_begin(w);
    pd_pickle_put_global(w, "torch._utils", "_rebuild_tensor_v2");
    pd_pickle_do(w, "((");
    pd_pickle_put_text(w, "storage");
    pd_pickle_put_global(w, "torch", storage_of(t->element));
    pd_pickle_put_text(w, "0");
    pd_pickle_put_text(w, "cpu");
    pd_pickle_put_u64(w, pd_foreign_elements(t));
    pd_pickle_do(w, "tQ");
    pd_pickle_put_u64(w, 0);
    pd_pickle_put_sizes(w, t->shape, t->ndim);
    pd_pickle_put_sizes(w, strides, t->ndim);
    pd_pickle_do(w, "\x89");
    pd_pickle_put_global(w, "collections", "OrderedDict");
    pd_pickle_do(w, ")RtR");
}

pd_status pd_torch_plan(const struct pd_foreign_tensor *tensor, struct pd_torch_output *ret_output, struct pd_error *err)
{
    static const char *const names[PD_TORCH_RECORDS] = {"archive/data.pkl", "archive/byteorder", "archive/data/0",
                                                        "archive/version"};
    struct pd_torch_output o = {0};
    struct pd_pickle_writer w = {0};
    put_tensor(&w, tensor);
    const pd_status st = pd_pickle_finish(&w, err);
    if (st) {
        pd_pickle_writer_deinit(&w);
        return st;
    }
    o.pickle = w.text;
    for (int i = 0; i < PD_TORCH_RECORDS; i++) {
        snprintf(o.records[i].name, sizeof o.records[i].name, "%s", names[i]);
        if (!fixed[i]) continue;
        o.records[i].bytes = strlen(fixed[i]);
        o.records[i].crc = pd_zip_crc(0, fixed[i], o.records[i].bytes);
    }
    o.records[PICKLE].bytes = w.bytes;
    o.records[PICKLE].crc = pd_zip_crc(0, w.text, w.bytes);
    o.records[DATA].bytes = pd_foreign_bytes(tensor);
    o.bytes = pd_zip_place(o.records, PD_TORCH_RECORDS);
    o.data_offset = o.records[DATA].data_offset;
    *ret_output = o;
    return PD_OK;
}

/* [begin, data) with the tensor's own header at its end, and all behind the data: two writes. */
pd_status pd_torch_write(struct pd_torch_output *output, uint32_t crc, struct pd_file *file, uint64_t begin,
                         struct pd_error *err)
{
    struct pd_zip_record *r = output->records;
    const uint64_t behind = r[DATA].data_offset + r[DATA].bytes,
                   most = output->data_offset > output->bytes - behind ? output->data_offset : output->bytes - behind;
    unsigned char *text = malloc(most + 512); /* a header may be written with all its padding */
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "no memory to write an archive");
    r[DATA].crc = crc;
    for (int i = PICKLE; i <= DATA; i++) {
        pd_zip_header(&r[i], text + r[i].header_offset);
        if (i < DATA) memcpy(text + r[i].data_offset, i == PICKLE ? (const char *)output->pickle : fixed[i], r[i].bytes);
    }
    pd_status st = pd_file_write(file, begin, text, output->data_offset, err);
    pd_zip_header(&r[VERSION], text);
    memcpy(text + r[VERSION].data_offset - behind, fixed[VERSION], r[VERSION].bytes);
    pd_zip_directory(r, PD_TORCH_RECORDS, text + r[VERSION].data_offset + r[VERSION].bytes - behind);
    if (!st) st = pd_file_write(file, begin + behind, text, output->bytes - behind, err);
    free(text);
    return st;
}

void pd_torch_output_deinit(struct pd_torch_output *output)
{
    free(output->pickle);
    *output = (struct pd_torch_output){0};
}
