#include "resharder/formats/format.h"

#include "resharder/catalog/model_directory.h"
#include "resharder/formats/dcp.h"
#include "resharder/formats/deepspeed.h"
#include "resharder/formats/gguf.h"
#include "resharder/formats/llmc.h"
#include "resharder/formats/megatron.h"
#include "resharder/formats/perdure.h"
#include "resharder/formats/safetensors.h"
#include "resharder/formats/torch.h"

#include <stdio.h>
#include <string.h>

const struct pd_format *const pd_formats[] = {
    &pd_format_perdure,
    &pd_format_safetensors,
    &pd_format_megatron,
    /* before dcp, whose files it also has */ &pd_format_dcp,
    &pd_format_torchtitan,
    &pd_format_deepspeed,
    &pd_format_universal,
    &pd_format_gguf,
    &pd_format_llmc,
    &pd_format_torch,
    NULL,
};

const struct pd_format *pd_format_find(const char *name)
{
    for (const struct pd_format *const *f = pd_formats; *f; f++)
        if (strcmp((*f)->name, name) == 0) return *f;
    return NULL;
}

/* Returns the format of the directory that contains a file, or NULL. ret_directory (PD_FORMATS_PATH_MAX). */
static const struct pd_format *format_around(struct pd_vfs *vfs, const char *path, char *ret_directory)
{
    const char *slash = strrchr(path, '/');
    const int bytes = slash == path ? 1 : slash ? (int)(slash - path) : 1;
    if (strlen(path) >= PD_FORMATS_PATH_MAX) return NULL;
    snprintf(ret_directory, PD_FORMATS_PATH_MAX, "%.*s", bytes, slash ? path : ".");
    for (const struct pd_format *const *f = pd_formats; *f; f++)
        if (!(*f)->file && (*f)->recognizes(vfs, ret_directory)) return *f;
    return NULL;
}

void pd_format_list_read(char ret_names[PD_FORMATS_NAMES_MAX])
{
    size_t used = 0;
    for (const struct pd_format *const *f = pd_formats; *f; f++) {
        if (*f == &pd_format_perdure || (*f)->is_form) continue;
        used += (size_t)snprintf(ret_names + used, PD_FORMATS_NAMES_MAX - used, "%s%s", used ? ", " : "", (*f)->name);
        PD_CHECK(used < PD_FORMATS_NAMES_MAX);
    }
}

/* Explains common directories that no format reads, recognised by a file in them, and says what to do. */
static pd_status refuse_by_name(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    static const struct {
        const char *file, *says;
    } others[] = {
        {"consolidated.00.pth",
         "is Meta's own form of a Llama; make one of transformers of it: python3 -m "
         "transformers.models.llama.convert_llama_weights_to_hf --input_dir DIR --model_size SIZE --output_dir OUT"},
        {"pytorch_model_fsdp_0/.metadata",
         "is of accelerate; its model is the directory pytorch_model_fsdp_0 in it: name that"},
        {"pytorch_model_fsdp.bin", "is of accelerate; its model is the file pytorch_model_fsdp.bin in it: name that"},
        {"pytorch_model/latest", "is of accelerate; DeepSpeed's checkpoint is the directory pytorch_model in it: name that"},
        {"mp_rank_00/model_optim_rng.pt", PD_LEGACY_MEGATRON},
        {"mp_rank_00_000/model_optim_rng.pt", PD_LEGACY_MEGATRON},
        {"latest_checkpointed_iteration.txt",
         "is of Megatron, and the iteration that latest_checkpointed_iteration.txt names has no .metadata, so it is "
         "damaged, or "
         "of the old form, which Megatron's training command writes again with --ckpt-convert-format torch_dist "
         "--ckpt-convert-save OUT"},
    };
    struct pd_stat stat;
    char inner[PD_FORMATS_PATH_MAX];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!pd_formats_join(path, others[i].file, inner, NULL) && !pd_vfs_stat(vfs, inner, &stat, NULL))
            PD_FAIL(err, PD_UNSUPPORTED, "%s %s", path, others[i].says);
    return PD_OK;
}

/* Suggests a file in a directory that no format reads as a whole, such as nanoGPT's ckpt.pt. Tries only the first few. */
static pd_status advise_file(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    enum { LOOKED_AT_MAX = 64 };
    struct pd_listing listing;
    char inner[PD_FORMATS_PATH_MAX];
    if (pd_vfs_list(vfs, path, &listing, NULL)) return PD_OK;
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < listing.count && i < LOOKED_AT_MAX; i++) {
        if (pd_formats_join(path, listing.names[i], inner, NULL)) continue;
        for (const struct pd_format *const *f = pd_formats; *f && !st; f++)
            if (!pd_formats_is_directory(vfs, inner) && (*f)->recognizes(vfs, inner))
                st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                                  "%s is a directory with a checkpoint of %s in it: name that, %s", path, (*f)->name, inner);
    }
    pd_listing_deinit(&listing);
    return st;
}

const struct pd_format *pd_format_recognize(struct pd_vfs *vfs, const char *path)
{
    for (const struct pd_format *const *f = pd_formats; *f; f++)
        if ((*f)->recognizes(vfs, path)) return *f;
    return NULL;
}

pd_status pd_format_of(struct pd_vfs *vfs, const char *path, const struct pd_format **ret_format, struct pd_error *err)
{
    struct pd_stat stat;
    char known[PD_FORMATS_NAMES_MAX], directory[PD_FORMATS_PATH_MAX];
    const pd_status st = pd_vfs_stat(vfs, path, &stat, err);
    if (st == PD_NOT_FOUND) PD_FAIL(err, st, "%s does not exist; name a file or a directory of another program", path);
    PD_TRY(st);
    const struct pd_format *format = pd_format_recognize(vfs, path);
    if (format) {
        *ret_format = format;
        return PD_OK;
    }
    const bool is_file = stat.type != PD_ENTRY_DIRECTORY;
    if (!is_file) PD_TRY(refuse_by_name(vfs, path, err));
    if (!is_file) PD_TRY(advise_file(vfs, path, err));
    const struct pd_format *around = is_file ? format_around(vfs, path, directory) : NULL;
    if (around)
        PD_FAIL(err, PD_INVALID, "%s is one file of a checkpoint (%s) that is a directory; name that: %s", path,
                around->name, directory);
    pd_format_list_read(known);
    PD_FAIL(err, PD_INVALID,
            "%s is %s in no format that perdure reads (%s): `perdure ckpt import --help` lists the files of each, and %s",
            path, is_file ? "a file" : "a directory", known,
            is_file ? "runs and checkpoints of perdure are directories" : "a run of perdure needs no import");
}

pd_status pd_format_not_written(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    (void)vfs;
    (void)ret_state;
    PD_FAIL(err, PD_UNSUPPORTED,
            "perdure reads %s but does not write it; `perdure ckpt export --help` lists the formats that it writes",
            plan->wanted->format);
}

void pd_format_observe_nothing(void *state, uint32_t tensor, const void *data, uint64_t bytes)
{
    (void)state, (void)tensor, (void)data, (void)bytes;
}

pd_status pd_format_finish_nothing(void *state, pd_status mine, struct pd_error *err)
{
    (void)state, (void)err;
    return mine;
}
