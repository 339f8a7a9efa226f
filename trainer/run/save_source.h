/* Where the bytes of a save come from: this rank's boxes in memory, a GPU's mirror of them, or its newest generation of
 * state in files. One table of functions with three rows (save_source.c); save.c is the queue above it.
 *
 *   begin    the caller's thread, right after an update: the state does not change before on_copied
 *   ready    the saver's thread, before ranks meet: what must have ended on this rank before its shard can be written
 *   write    the saver's thread, once for each tier that is tried: this rank's shard, into `store`
 *
 *              state in memory                             state in files
 *   begin      on a GPU the copy to the mirror starts      what is still in memory is written
 *   ready      it has arrived                              tables and one sync
 *   write      the boxes are copied                        the file gets one more name
 */
#pragma once

#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"

struct pd_save_source;

/* How a save stands to those before it. */
enum pd_save_order {
    PD_SAVE_BESIDE,     /* it may begin while others are under way */
    PD_SAVE_AFTER_COPY, /* there is one mirror: the save before has copied what is in it */
    PD_SAVE_ALONE       /* state in files, whose pool has one user at a time: all others have ended */
};

/* What `ready` leaves for `write`, where state is in files. */
struct pd_save_shard {
    struct pd_shard_summary summary;
    uint32_t slot;
};

/* Everything is borrowed for the source's life. `on_copied` is called by the saver's thread, inside write, as soon as the
 * state may change again. */
PD_MUST_USE pd_status pd_save_source_new(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group,
                                         struct pd_engine *engine, void (*on_copied)(void *context), void *context,
                                         struct pd_save_source **ret_source, struct pd_error *err);
void pd_save_source_free(struct pd_save_source *source);

enum pd_save_order pd_save_source_order(const struct pd_save_source *source);
uint64_t pd_save_source_file_bytes(const struct pd_save_source *source); /* the most of any tier */

PD_MUST_USE pd_status pd_save_source_begin(struct pd_save_source *source, const struct pd_identity *identity,
                                           struct pd_error *err);
PD_MUST_USE pd_status pd_save_source_ready(struct pd_save_source *source, struct pd_save_shard *ret_shard,
                                           struct pd_error *err);
/* As pd_tiers_save.prepare. */
PD_MUST_USE pd_status pd_save_source_write(struct pd_save_source *source, const struct pd_identity *identity,
                                           const struct pd_save_shard *shard, struct pd_store *store, uint32_t tier,
                                           pd_status *ret_written, struct pd_shard_summary *ret_summary,
                                           struct pd_error *err);
/* One file for the next save, where files lie in memory. The saver's thread, while no save is under way. */
void pd_save_source_make_file(struct pd_save_source *source);
