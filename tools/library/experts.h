/* What a conversion does with the tensors of experts, counted on both sides: a converter that drops some of them is otherwise
 * noticed by nobody, because the rest of the model computes. */
#pragma once

#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"
#include "trainer/model/model.h"

struct pd_expert_side {
    uint64_t tensors, bytes, elements; /* of parameters; bytes as stored */
};
struct pd_expert_count {
    struct pd_expert_side in, out;
};

/* Counts the catalog's tensors that hold experts of the model, by their links, each once.
 *   links  NULL: the catalog has the model's tensors under their own names */
PD_MUST_USE pd_status pd_expert_count_catalog(const struct pd_model *model, const struct pd_links *links,
                                              const struct pd_catalog *catalog, struct pd_expert_side *ret_side,
                                              struct pd_error *err);
/*   errors  PD_CORRUPT: the sides do not have as many elements */
PD_MUST_USE pd_status pd_expert_count_compare(const struct pd_expert_count *count, const char *source, struct pd_error *err);
