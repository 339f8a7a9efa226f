#include "trainer/engine/computed_on.h"

#include "ckpt/base/json.h"
#include "trainer/engine/gpus.h"

#include <stdio.h>
#include <string.h>

/* Libraries that compute; NCCL only moves bytes. */
static const char *const keys[PD_GPU_LIBRARY_COUNT] = {[PD_GPU_CUBLASLT] = "cublaslt"};

pd_status pd_computed_on(const struct pd_rank_device *device, char **ret_text, struct pd_error *err)
{
    struct pd_json_writer w;
    const char *text = "";
    size_t bytes = 0;
    pd_status st = PD_OK;
    pd_json_writer_init(&w, 0);
    if (device && device->dev) {
        pd_json_object_begin(&w, NULL);
        pd_json_string(&w, "device", device->dev->description);
        for (int i = 0; i < PD_GPU_LIBRARY_COUNT; i++) {
            struct pd_gpu_library_version version;
            if (keys[i] && pd_gpu_library_find((enum pd_gpu_library)i, false, &version))
                pd_json_string(&w, keys[i], version.version);
        }
        st = pd_json_writer_finish(&w, &text, &bytes, err);
    }
    char *copy = st ? NULL : strndup(text, strcspn(text, "\n"));
    pd_json_writer_deinit(&w);
    PD_TRY(st);
    if (!copy) PD_FAIL(err, PD_NO_MEMORY, "no memory for what this run is computed on");
    *ret_text = copy;
    return PD_OK;
}

static bool describe_object(const struct pd_json_value *object, char *ret, size_t bytes)
{
    const struct pd_json_value *value;
    const char *key, *word;
    void *cursor = NULL;
    size_t used = 0;
    while (pd_json_next(object, &cursor, &key, &value)) {
        word = pd_json_text(value);
        if (!word) return false;
        if (!strcmp(key, "device"))
            used += (size_t)snprintf(ret + used, bytes - used, "%s", word);
        else if (!strcmp(key, "imported_from"))
            used += (size_t)snprintf(ret + used, bytes - used, "another program, imported from %s", word);
        else
            used += (size_t)snprintf(ret + used, bytes - used, ", %s %s", key, word);
        if (used >= bytes) return true;
    }
    return used > 0;
}

void pd_computed_on_describe(const char *text, char *ret, size_t bytes)
{
    struct pd_json_document *document = NULL;
    bool is_known = false;
    if (!text || !text[0]) {
        snprintf(ret, bytes, "a CPU");
        return;
    }
    if (!pd_json_parse("environment", text, strlen(text), &document, NULL))
        is_known = describe_object(pd_json_root(document), ret, bytes);
    pd_json_document_free(document);
    if (!is_known) snprintf(ret, bytes, "another machine");
}
