/* Weights as transformers saved them before safetensors: torch.save archives of one dictionary of names and tensors, as
 * pytorch_model.bin or in shards listed in pytorch_model.bin.index.json. Source: transformers/modeling_utils.py. */
#include "resharder/formats/torch.h"

#include "ckpt/base/words.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/model_files.h"
#include "resharder/torch/archive.h"

#include <string.h>

static const unsigned char archive_magic[4] = {'P', 'K', 3, 4}, old_magic[4] = {0x80, 2, 0x8a, 10};

pd_status pd_torch_add_tensor(struct pd_catalog *catalog, const struct pd_torch_archive *archive, uint32_t file,
                              const char *name, const struct pd_pickle_node *node, struct pd_error *err)
{
    struct pd_torch_tensor t;
    uint32_t number = 0;
    pd_status st = pd_torch_tensor(archive, name, node, &t, err);
    if (st == PD_UNSUPPORTED) return pd_catalog_add_unmapped(catalog, err->message, err);
    PD_TRY(st);
    struct pd_foreign_tensor tensor = {.name = (char *)(uintptr_t)name, .element = t.element, .ndim = t.ndim};
    memcpy(tensor.shape, t.shape, sizeof tensor.shape);
    const struct pd_piece piece = pd_torch_piece(&t, file);
    st = pd_catalog_add_tensor(catalog, &tensor, &number, err);
    if (st) return pd_error_context(err, st, "%s", archive->path);
    return pd_catalog_add_piece(catalog, number, &piece, err);
}

/* `skipped`, or NULL: a value whose items have been added. */
static pd_status add_items(struct pd_catalog *catalog, const struct pd_torch_archive *archive, uint32_t file,
                           const struct pd_pickle_node *dict, const struct pd_pickle_node *skipped, struct pd_error *err)
{
    for (uint32_t i = 0; i + 1 < dict->count; i += 2) {
        const char *name = pd_pickle_text(dict->items[i]);
        if (dict->items[i + 1] == skipped) continue;
        if (name && dict->items[i + 1]->type == PD_PICKLE_OBJECT && !skipped)
            PD_TRY(pd_torch_add_tensor(catalog, archive, file, name, dict->items[i + 1], err));
        else
            PD_TRY(pd_catalog_add_unmapped(catalog, name ? name : "a value whose name is not text", err));
    }
    return PD_OK;
}

/* Returns the model stored beside an optimizer and counters, under a name that trainers use; or NULL. */
static const struct pd_pickle_node *find_model(const struct pd_pickle_node *root)
{
    static const char *const names[] = {"model", "state_dict", "model_state_dict", "module"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct pd_pickle_node *found = pd_pickle_member(root, names[i]);
        if (found && found->type == PD_PICKLE_DICT) return found;
    }
    return NULL;
}

/* Explains dictionaries of programs whose tensors alone are not a model. */
static pd_status refuse_by_name(const char *path, const struct pd_pickle_node *root, struct pd_error *err)
{
    static const char *const degrees[] = {"tensor_model_parallel_size", "pipeline_model_parallel_size"};
    const struct pd_pickle_node *args = pd_pickle_member(root, "args");
    uint64_t degree = 0;
    if (pd_pickle_member(root, "model_args") && pd_pickle_member(root, "iter_num"))
        PD_FAIL(
            err, PD_UNSUPPORTED,
            "%s is nanoGPT's, with the exact GELU, and perdure computes the tanh form of GPT-2; it reads what transformers' "
            "GPT2LMHeadModel.save_pretrained writes",
            path);
    for (int i = 0; i < 2; i++)
        if (args && pd_pickle_is_u64(pd_pickle_field(args, degrees[i]), &degree) && degree > 1)
            PD_FAIL(err, PD_UNSUPPORTED, "%s " PD_LEGACY_MEGATRON, path);
    return PD_OK;
}

static pd_status add_tensors(struct pd_catalog *catalog, const struct pd_torch_archive *archive, uint32_t file,
                             struct pd_error *err)
{
    const struct pd_pickle_node *root = pd_pickle_root(archive->pickle);
    const struct pd_pickle_node *model = root->type == PD_PICKLE_DICT ? find_model(root) : NULL;
    const uint32_t before = catalog->tensor_count;
    if (root->type == PD_PICKLE_DICT) PD_TRY(refuse_by_name(archive->path, root, err));
    if (model) PD_TRY(add_items(catalog, archive, file, model, NULL, err));
    if (root->type == PD_PICKLE_DICT) PD_TRY(add_items(catalog, archive, file, root, model, err));
    if (catalog->tensor_count > before) return PD_OK;
    PD_FAIL(
        err, PD_INVALID,
        "%s is not a dictionary of tensors; perdure reads torch.save(model.state_dict(), \"pytorch_model.bin\"), or that "
        "as \"model\", \"state_dict\", \"model_state_dict\" or \"module\" of a dictionary",
        archive->path);
}

static pd_status check_age(struct pd_file *file, const char *path, uint64_t bytes, struct pd_error *err)
{
    unsigned char head[sizeof old_magic] = {0};
    if (bytes >= sizeof head) PD_TRY(pd_file_read(file, 0, head, sizeof head, err));
    if (memcmp(head, old_magic, sizeof head) != 0) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "%s is not an archive, as torch saved before 1.6; save it again: python3 -c 'import torch; f = \"%s\"; "
            "torch.save(torch.load(f), f)'",
            path, path);
}

static pd_status read_open(struct pd_file *file, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    struct pd_torch_archive archive = {0};
    struct pd_stat stat;
    uint32_t number = 0;
    PD_TRY(pd_file_stat(file, &stat, err));
    PD_TRY(check_age(file, path, stat.bytes, err));
    PD_TRY(pd_torch_open(file, path, 0, stat.bytes, &archive, err));
    pd_status st = pd_catalog_add_file(catalog, path, stat.bytes, &number, err);
    if (!st) st = add_tensors(catalog, &archive, number, err);
    pd_torch_close(&archive);
    return st;
}

static pd_status read_file(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    const pd_status st = read_open(file, path, catalog, err);
    pd_file_close_readonly(file);
    return st;
}

static const struct pd_model_files model_files = {"pytorch_model.bin.index.json", "pytorch_model.bin", NULL, read_file};

/* True for a torch.save file that belongs to a directory format. */
static bool is_part_of_another(const char *path)
{
    static const char *const endings[] = {".distcp", "_model_states.pt", "_optim_states.pt"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (pd_ends_with(path, endings[i])) return true;
    return false;
}

static bool torch_recognizes(struct pd_vfs *vfs, const char *path)
{
    struct pd_file *file = NULL;
    unsigned char head[sizeof archive_magic];
    if (pd_formats_is_directory(vfs, path)) return pd_model_files_are_in(vfs, &model_files, path);
    if (is_part_of_another(path)) return false;
    if (pd_file_open(vfs, path, PD_OPEN_READ, &file, NULL)) return false;
    const bool is_read = !pd_file_read(file, 0, head, sizeof head, NULL);
    pd_file_close_readonly(file);
    return is_read && (!memcmp(head, archive_magic, sizeof head) || !memcmp(head, old_magic, sizeof head));
}

static pd_status read_any(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    return pd_model_files_read(vfs, &model_files, path, catalog, err);
}

const struct pd_format pd_format_torch = {
    .name = "torch",
    .about = "torch.save of a state_dict, or as \"model\" of a dictionary: pytorch_model.bin, also in shards",
    .recognizes = torch_recognizes,
    .read = read_any,
    .plan = pd_format_not_written,
    .observe = pd_format_observe_nothing,
    .finish = pd_format_finish_nothing,
};
