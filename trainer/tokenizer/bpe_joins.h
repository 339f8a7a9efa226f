/* Which two characters some merge joins: the last of its left token and the first of its right one. Between two others no merge
 * ever happens, so text may be cut there.
 *   threads  any */
#pragma once

#include "trainer/tokenizer/bpe.h"

struct pd_joins;

PD_MUST_USE pd_status pd_joins_new(const struct pd_vocab *vocab, const struct pd_merge *merges, uint32_t count,
                                   struct pd_joins **ret_joins, struct pd_error *err);
void pd_joins_free(struct pd_joins *joins);
/* Bytes up to the first place where valid UTF-8 may be cut; all where there is none. */
size_t pd_joins_cut(const struct pd_joins *joins, const char *text, size_t bytes);
