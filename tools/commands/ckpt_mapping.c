#include "resharder/catalog/element.h"
#include "tools/commands/ckpt.h"
#include "tools/output.h"

#include <string.h>

/* Source of an export's tensor: "" for a moment that begins at zero. */
static const char *origin_of(const struct pd_ckpt_mapping *m, const struct pd_link *link)
{
    for (uint32_t i = 0; m->sources && i < m->sources->count; i++)
        if (m->sources->items[i].tensor == link->tensor && m->sources->items[i].kind == link->kind)
            return m->sources->items[i].name;
    return m->sources ? "" : m->model->tensors.tensors[link->tensor].name;
}

pd_status pd_ckpt_print_mapping(const struct pd_ckpt_mapping *m, bool is_json, struct pd_error *err)
{
    const char *const headings[] = {"TENSOR", "KIND", m->is_import ? "FROM" : "TO", "TYPE", "FROM"};
    struct pd_table table;
    struct pd_json_writer w;
    pd_table_init(&table, headings, m->sources ? 5 : 4);
    pd_json_writer_init(&w, 2);
    pd_json_array_begin(&w, NULL);
    for (uint32_t i = 0; i < m->links->count; i++) {
        const struct pd_link *link = &m->links->items[i];
        const char *name = m->model->tensors.tensors[link->tensor].name, *from = origin_of(m, link);
        const int64_t found = pd_catalog_find(m->catalog, link->name, link->kind);
        if (found < 0 || (m->only && !strstr(link->name, m->only))) continue;
        const char *type = pd_elements[m->catalog->tensors[found].element].name;
        PD_TABLE_ROW(&table, name, pd_kind_name(link->kind), link->name, type, from);
        pd_json_object_begin(&w, NULL);
        PD_JSON_STRINGS(&w, {"tensor", name}, {"kind", pd_kind_name(link->kind)}, {m->is_import ? "from" : "to", link->name},
                        {"type", type});
        if (!m->is_import) pd_json_string(&w, "from", from);
        pd_json_object_end(&w);
    }
    const pd_status st = is_json ? pd_output_json(&w, err) : pd_table_print(&table, err);
    pd_json_writer_deinit(&w);
    pd_table_deinit(&table);
    return st;
}
