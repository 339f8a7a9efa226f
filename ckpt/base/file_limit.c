#include "ckpt/base/file_limit.h"

#include "ckpt/base/words.h"

#include <sys/resource.h>

pd_status pd_file_limit_check(const char *what, uint64_t bytes, struct pd_error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur >= bytes) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "%s needs a file of %s, and files are limited to %s in this shell: raise the limit with ulimit -f unlimited, or "
            "where it is set (limits.conf, the batch system)",
            what, pd_bytes_text((double)bytes).text, pd_bytes_text((double)limit.rlim_cur).text);
}
