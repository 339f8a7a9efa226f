/* Saving a run: this rank's boxes into its shard, then the commit over all ranks.
 *
 * The plan of the shard file and the index are made once a launch; a save afterwards writes data, tables and the record.
 *   threads  one caller
 */
#ifndef PD_TRAINER_SAVE_H
#define PD_TRAINER_SAVE_H

#include "ckpt/store.h"
#include "trainer/engine.h"

struct pd_saver;

/* Everything is borrowed for the saver's life. `group` has one rank per rank of the engine. */
PD_MUST_USE pd_status pd_saver_new(struct pd_door *door, struct pd_store *store, struct pd_group *group,
                                   struct pd_engine *engine, struct pd_saver **ret_saver, struct pd_error *err);
void pd_saver_free(struct pd_saver *saver);
/* Bytes of this rank's shard file. */
uint64_t pd_saver_file_bytes(const struct pd_saver *saver);
/* Writes, commits, prunes. On failure the previous checkpoint is untouched and the next save may succeed. */
PD_MUST_USE pd_status pd_saver_save(struct pd_saver *saver, const struct pd_run_state *state, struct pd_error *err);

#endif
