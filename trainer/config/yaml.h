/* A YAML text as a flat list of paths and values with their places. The only user of libyaml. */
#pragma once

#include "ckpt/base/status.h"

enum pd_yaml_node { PD_YAML_VALUE, PD_YAML_SECTION, PD_YAML_LIST };

struct pd_yaml_entry {
    enum pd_yaml_node node;
    char *path;            /* "data.train[0].path", owned */
    char *value;           /* PD_YAML_VALUE: the scalar; NULL otherwise; owned */
    uint32_t line, column; /* from 1 */
};

struct pd_yaml {
    struct pd_yaml_entry *entries; /* in the order of the text, a section or list before what is in it */
    uint32_t count;
};

/*   errors  PD_INVALID with "name:line:column": bad syntax, a key said twice, an alias, a second document, too deep, too
 * many */
PD_MUST_USE pd_status pd_yaml_read(const char *name, const char *text, struct pd_yaml *ret_yaml, struct pd_error *err);
void pd_yaml_deinit(struct pd_yaml *yaml);
