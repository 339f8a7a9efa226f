/* Whether a drive has room for what will be saved on it. */
#ifndef PD_CKPT_STORE_SPACE_H
#define PD_CKPT_STORE_SPACE_H

#include "ckpt/store/dir.h"

struct store_space_need {
    uint64_t bytes;   /* one checkpoint of the ranks that share the drive, or one generation of theirs */
    uint64_t there;   /* what lies there already and makes room as new ones come */
    uint32_t ranks;   /* that share the drive */
    uint32_t copies;  /* must fit at once */
    bool generations; /* files of state; else checkpoints, of which one must fit in any case */
};

PD_MUST_USE pd_status store_check_space(const struct store_dir *dir, const struct store_space_need *need,
                                        struct pd_error *err);

#endif
