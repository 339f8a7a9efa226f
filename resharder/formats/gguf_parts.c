/* Models in several files, found by their names. */
#include "resharder/formats/gguf.h"

#include "resharder/catalog/model_directory.h"

#include <stdio.h>
#include <string.h>

uint32_t pd_gguf_parts_of(const char *path, size_t *prefix_bytes)
{
    const size_t bytes = strlen(path), ending = strlen("-00001-of-00003.gguf");
    unsigned number = 0, count = 0;
    int end = 0;
    if (bytes <= ending) return 0;
    *prefix_bytes = bytes - ending;
    const bool is_part = sscanf(path + bytes - ending, "-%5u-of-%5u.gguf%n", &number, &count, &end) == 2 &&
                         (size_t)end == ending && number >= 1 && number <= count;
    return is_part ? count : 0;
}

pd_status pd_gguf_find(struct pd_vfs *vfs, const char *directory, char *ret_path, struct pd_error *err)
{
    struct pd_listing listing;
    const char *found = NULL, *other = NULL;
    size_t found_bytes = 0, bytes = 0;
    ret_path[0] = '\0';
    PD_TRY(pd_vfs_list(vfs, directory, &listing, err));
    for (uint32_t i = 0; i < listing.count; i++) {
        const char *name = listing.names[i];
        const size_t length = strlen(name), ending = strlen(".gguf");
        if (length <= ending || strcmp(name + length - ending, ".gguf") != 0) continue;
        if (!pd_gguf_parts_of(name, &bytes)) bytes = length;
        if (!found)
            found = name, found_bytes = bytes;
        else if (bytes != found_bytes || strncmp(name, found, bytes) != 0)
            other = name;
    }
    pd_status st = PD_OK;
    if (other)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "%s holds several models, %s and %s among them: name the file of one", directory, found, other);
    else if (found)
        st = pd_formats_path(directory, found, ret_path, err);
    pd_listing_deinit(&listing);
    return st;
}
