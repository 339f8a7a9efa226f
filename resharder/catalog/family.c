#include "resharder/catalog/family.h"

#include "ckpt/base/json.h"

#include <string.h>

const struct pd_family *pd_family_at(uint32_t family)
{
    uint32_t count = 0;
    while (pd_families[count])
        count++;
    return family < count ? pd_families[family] : NULL;
}

static bool is_named(const char *name, const char *wanted)
{
    return !wanted || strcmp(name, wanted) == 0;
}

const struct pd_model_class *pd_model_class_find(const char *name, const char *type, const char *gguf, uint32_t *ret_family)
{
    for (uint32_t f = 0; pd_families[f]; f++) {
        for (const struct pd_model_class *c = pd_families[f]->classes; c->name; c++) {
            if (!is_named(c->name, name) || !is_named(c->type, type) || !is_named(c->gguf, gguf)) continue;
            if (ret_family) *ret_family = f;
            return c;
        }
    }
    return NULL;
}

const struct pd_model_class *pd_model_class_of_gguf(const char *gguf, bool has_experts, uint32_t *ret_family)
{
    const struct pd_model_class *any = pd_model_class_find(NULL, NULL, gguf, ret_family);
    for (uint32_t f = 0; pd_families[f]; f++)
        for (const struct pd_model_class *c = pd_families[f]->classes; c->name; c++)
            if (strcmp(c->gguf, gguf) == 0 && (pd_families[f]->router != PD_ROUTER_NONE) == has_experts)
                return *ret_family = f, c;
    return any;
}

const struct pd_family *pd_family_of_dialect(const char *dialect)
{
    for (const struct pd_family *const *f = pd_families; *f; f++)
        for (const struct pd_dialect *const *d = (*f)->dialects; *d; d++)
            if (strcmp((*d)->name, dialect) == 0) return *f;
    return NULL;
}

void pd_model_class_write(const struct pd_model_class *class, struct pd_json_writer *writer)
{
    pd_json_array_begin(writer, "architectures");
    pd_json_string(writer, NULL, class->name);
    pd_json_array_end(writer);
    pd_json_string(writer, "model_type", class->type);
}

void pd_rope_factors_write(const struct pd_rope_factors *s, struct pd_json_writer *writer)
{
    pd_json_object_begin(writer, "rope_scaling");
    pd_json_string(writer, "rope_type", s->is_llama3 ? "llama3" : "linear");
    pd_json_double(writer, "factor", s->factor);
    if (s->is_llama3) {
        PD_JSON_DOUBLES(writer, {"low_freq_factor", s->low}, {"high_freq_factor", s->high});
        pd_json_u64(writer, "original_max_position_embeddings", s->original);
    }
    pd_json_object_end(writer);
}
