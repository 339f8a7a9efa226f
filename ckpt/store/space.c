#include "ckpt/store/space.h"

#include <inttypes.h>
#include <stdio.h>

struct human_bytes {
    char text[32];
};

static struct human_bytes human(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct human_bytes result;
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1024.0 && unit < 6; unit++)
        value /= 1024.0;
    snprintf(result.text, sizeof result.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return result;
}

pd_status store_check_space(const struct store_dir *dir, const struct store_space_need *need, struct pd_error *err)
{
    struct pd_space space;
    PD_TRY(pd_vfs_space(dir->vfs, dir->root, &space, err));
    const char *plural = need->copies == 1 ? "" : "s";
    uint64_t needed, least = need->generations ? 0 : need->bytes;
    if (__builtin_mul_overflow(need->bytes, need->copies, &needed)) needed = UINT64_MAX;
    needed = needed > need->there && needed - need->there > least ? needed - need->there : least;
    char already[64] = "";
    if (need->there) snprintf(already, sizeof already, ", %s of them is there already", human(need->there).text);
    if (needed > space.available_bytes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s (%s) has %s free and needs %s: %u %s%s of %s must fit at once%s; "
                "delete some (perdure ckpt prune), keep fewer (checkpoint.keep_last) or choose another directory",
                dir->root, space.type_name, human(space.available_bytes).text, human(needed).text, need->copies,
                need->generations ? "generation" : "checkpoint", plural, human(need->bytes).text, already);
    uint64_t inodes = ((uint64_t)need->ranks + 4) * need->copies + 8;
    if (space.total_inodes && inodes > space.available_inodes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s (%s) has %" PRIu64 " inodes free and %" PRIu64 " are needed for %u more checkpoint%s: delete files or "
                "choose another directory",
                dir->root, space.type_name, space.available_inodes, inodes, need->copies, plural);
    return PD_OK;
}
