#include "resharder/formats/torch_names.h"

#include <string.h>

/* Behind "state.": PyTorch says what it is after the parameter's name, Megatron before it. */
static const struct {
    const char *before, *after;
    enum pd_torch_role role;
} roles[] = {
    {"", ".exp_avg", PD_TORCH_EXP_AVG}, {"", ".exp_avg_sq", PD_TORCH_EXP_AVG_SQ}, {"", ".step", PD_TORCH_STEP},
    {"exp_avg.", "", PD_TORCH_EXP_AVG}, {"exp_avg_sq.", "", PD_TORCH_EXP_AVG_SQ}, {"fp32_param.", "", PD_TORCH_MASTER},
};

enum pd_torch_role pd_torch_role(const char *name, const char **ret_name, size_t *ret_bytes)
{
    const char *state = strncmp(name, "state.", 6) == 0 ? name : strstr(name, ".state.");
    *ret_name = name;
    *ret_bytes = strlen(name);
    if (!state) return strstr(name, "param_groups.") ? PD_TORCH_OTHER : PD_TORCH_PARAM;
    const char *inner = strchr(state + 1, '.') + 1;
    const size_t bytes = strlen(inner);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const size_t before = strlen(roles[i].before), after = strlen(roles[i].after);
        if (bytes <= before + after || strncmp(inner, roles[i].before, before) != 0 ||
            strcmp(inner + bytes - after, roles[i].after) != 0)
            continue;
        *ret_name = inner + before;
        *ret_bytes = bytes - before - after;
        return roles[i].role;
    }
    return PD_TORCH_OTHER;
}

/* Bytes before `inner` in `name`, where `name` ends with it behind a dot; 0: it does not. */
static size_t wrapper_of(const char *name, const char *inner)
{
    const size_t bytes = strlen(name), inner_bytes = strlen(inner);
    if (bytes <= inner_bytes || name[bytes - inner_bytes - 1] != '.') return 0;
    return strcmp(name + bytes - inner_bytes, inner) == 0 ? bytes - inner_bytes : 0;
}

/* The shortest that a parameter of the first moment's name has. */
static const char *find_wrapper(const struct pd_catalog *c, size_t *ret_bytes)
{
    const char *inner = NULL, *wrapper = NULL;
    *ret_bytes = 0;
    for (uint32_t t = 0; t < c->tensor_count && !inner; t++)
        if (c->tensors[t].kind != PD_PARAM) inner = c->tensors[t].name;
    for (uint32_t t = 0; inner && t < c->tensor_count; t++) {
        const struct pd_foreign_tensor *p = &c->tensors[t];
        if (p->kind != PD_PARAM) continue;
        if (strcmp(p->name, inner) == 0) return NULL; /* they agree */
        const size_t bytes = wrapper_of(p->name, inner);
        if (bytes && (!wrapper || bytes < *ret_bytes)) {
            wrapper = p->name;
            *ret_bytes = bytes;
        }
    }
    return wrapper;
}

void pd_torch_strip_wrapper(struct pd_catalog *catalog)
{
    char prefix[PD_FOREIGN_NAME_MAX];
    size_t bytes = 0;
    const char *wrapper = find_wrapper(catalog, &bytes);
    if (!wrapper) return;
    memcpy(prefix, wrapper, bytes);
    for (uint32_t t = 0; t < catalog->tensor_count; t++) {
        struct pd_foreign_tensor *p = &catalog->tensors[t];
        if (p->kind == PD_PARAM && strncmp(p->name, prefix, bytes) == 0 && p->name[bytes])
            memmove(p->name, p->name + bytes, strlen(p->name + bytes) + 1);
    }
}
