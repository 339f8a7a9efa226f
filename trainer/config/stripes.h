/* The drives that a rank's state in files is cut over, as the configuration gives them. */
#pragma once

#include "ckpt/store/commit.h"
#include "trainer/config/config.h"

/* Shards a rank: one more than checkpoint.stripes has directories. */
uint32_t pd_stripes_count(const struct pd_config *config);
/* The configuration's weights, or equal ones: what plans go by before anything was measured. */
void pd_stripes_apply(const struct pd_config *config, struct pd_layout *layout);
struct pd_stripes_left {
    char *dirs[PD_LAYOUT_STRIPES_MAX]; /* borrowed from the configuration */
    char weights[PD_LAYOUT_STRIPES_MAX * 6 + 1];
};
/* `config` without those: a shallow copy, good while `config` and `ret_left` are. */
void pd_stripes_leave_out(const struct pd_config *config, uint64_t absent, struct pd_stripes_left *ret_left,
                          struct pd_config *ret_config);
/* "3,1" as weights; false: not `count` numbers from 1 to 65535. */
bool pd_stripes_parse(const char *text, uint32_t count, uint16_t ret_weights[PD_LAYOUT_STRIPES_MAX]);
