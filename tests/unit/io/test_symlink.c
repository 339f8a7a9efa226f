/* Symbolic links, by one script through every VFS: the simulated ones must say what the real ones say. */
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call) cr_assert_eq((call), PD_OK)
#define AT(variable, name) (snprintf(variable, sizeof variable, "%s/%s", root, name), variable)

static void write_text(struct pd_vfs *vfs, const char *path, const char *text)
{
    struct pd_file *file;
    OK(pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, NULL));
    OK(pd_file_write(file, 0, text, strlen(text), NULL));
    OK(pd_file_sync(file, NULL));
    OK(pd_file_close(file, NULL));
}

static void expect_text(struct pd_vfs *vfs, const char *path, const char *text)
{
    struct pd_file *file;
    struct pd_stat st;
    char data[64] = "";
    OK(pd_vfs_stat(vfs, path, &st, NULL));
    cr_assert_eq(st.bytes, strlen(text));
    OK(pd_file_open(vfs, path, PD_OPEN_READ, &file, NULL));
    OK(pd_file_read(file, 0, data, st.bytes, NULL));
    pd_file_close_readonly(file);
    cr_assert_str_eq(data, text);
}

/* Through a directory that is held open, and through no link below it. */
static void removing(struct pd_vfs *vfs, const char *root)
{
    char there[256], path[256];
    struct pd_error err;
    struct pd_dir *dir = NULL;
    struct pd_listing listing;
    struct pd_stat st;
    OK(pd_simulated_symlink(vfs, AT(there, "there"), AT(path, "here/link")));
    cr_assert_eq(pd_dir_open(vfs, root, "here/link", &dir, &err), PD_IO);
    cr_assert(err.sys_errno == ELOOP && strstr(err.message, "here/link is a symbolic link"), "%s", err.message);
    cr_assert_eq(pd_dir_open(vfs, root, "here/link/step", &dir, &err), PD_IO);
    cr_assert_eq(pd_dir_open(vfs, root, "absent", &dir, NULL), PD_NOT_FOUND);
    cr_assert_eq(pd_vfs_remove_tree(vfs, path, 9, &err), PD_IO);
    cr_assert_eq(err.sys_errno, ELOOP);
    OK(pd_dir_open(vfs, path, "step", &dir, NULL)); /* the path itself may be one */
    OK(pd_dir_list(dir, &listing, NULL));
    cr_assert_eq(listing.count, 1u);
    pd_listing_deinit(&listing);
    cr_assert_eq(pd_dir_unlink(dir, "absent", NULL), PD_NOT_FOUND);
    pd_dir_close(dir);

    OK(pd_vfs_mkdir(vfs, AT(path, "here/tree"), NULL));
    OK(pd_vfs_mkdir(vfs, AT(path, "here/tree/below"), NULL));
    write_text(vfs, AT(path, "here/tree/below/file"), "gone");
    OK(pd_simulated_symlink(vfs, there, AT(path, "here/tree/below/link")));
    cr_assert_eq(pd_vfs_remove_tree(vfs, AT(path, "here/tree"), 1, NULL), PD_INVALID);
    OK(pd_vfs_remove_tree(vfs, path, 2, NULL));
    cr_assert_eq(pd_vfs_stat(vfs, path, &st, NULL), PD_NOT_FOUND);
    expect_text(vfs, AT(path, "there/step/file"), "far"); /* nothing went that way */
    OK(pd_dir_open(vfs, root, "here", &dir, NULL));
    OK(pd_dir_unlink(dir, "link", NULL));
    cr_assert_eq(pd_dir_rmdir(dir, "absent", NULL), PD_NOT_FOUND);
    pd_dir_close(dir);
}

/* root/here and root/there are directories, the second one maybe of another file system. */
static void script(struct pd_vfs *vfs, const char *root)
{
    char there[256], path[256], other[256], target[4096];
    struct pd_stat st;
    struct pd_listing listing;

    OK(pd_vfs_mkdir(vfs, AT(path, "there/step"), NULL));
    write_text(vfs, AT(path, "there/step/file"), "far");
    OK(pd_simulated_symlink(vfs, AT(there, "there"), AT(path, "here/link-1")));
    cr_assert_eq(pd_simulated_symlink(vfs, "x", path), PD_EXISTS);
    OK(pd_vfs_mkdir(vfs, AT(path, "here/step"), NULL));
    OK(pd_simulated_symlink(vfs, "../link-1/step/file", AT(path, "here/step/file")));
    expect_text(vfs, path, "far"); /* a link to a path that goes through a link */
    OK(pd_vfs_stat(vfs, AT(path, "here/link-1/step"), &st, NULL));
    cr_assert_eq(st.type, PD_ENTRY_DIRECTORY);
    OK(pd_vfs_list(vfs, path, &listing, NULL));
    cr_assert_eq(listing.count, 1u);
    pd_listing_deinit(&listing);
    OK(pd_vfs_sync_dir(vfs, AT(path, "here/link-1/step"), NULL));
    OK(pd_vfs_readlink(vfs, AT(path, "here/step/file"), target, NULL));
    cr_assert_str_eq(target, "../link-1/step/file");
    OK(pd_vfs_readlink(vfs, AT(path, "here/link-1"), target, NULL));
    cr_assert_str_eq(target, there);
    cr_assert_eq(pd_vfs_readlink(vfs, AT(path, "there/step/file"), target, NULL), PD_UNSUPPORTED);
    cr_assert_eq(pd_vfs_readlink(vfs, AT(path, "here/absent"), target, NULL), PD_NOT_FOUND);
    cr_assert_str_eq(target, there, "untouched by a failure");

    OK(pd_vfs_rename(vfs, AT(path, "here/step"), AT(other, "here/later"), NULL));
    expect_text(vfs, AT(path, "here/later/file"), "far");
    OK(pd_vfs_rename(vfs, path, AT(other, "here/moved"), NULL)); /* the link, and now it leads nowhere */
    cr_assert_eq(pd_vfs_stat(vfs, other, &st, NULL), PD_NOT_FOUND);
    OK(pd_vfs_unlink(vfs, other, NULL));
    OK(pd_simulated_symlink(vfs, "nowhere", AT(path, "here/new")));
    OK(pd_vfs_rename(vfs, path, AT(other, "here/link-1"), NULL)); /* replaces a link at once */
    cr_assert_eq(pd_vfs_stat(vfs, AT(path, "here/link-1/step"), &st, NULL), PD_NOT_FOUND);
    OK(pd_vfs_unlink(vfs, other, NULL));
    expect_text(vfs, AT(path, "there/step/file"), "far");
    removing(vfs, root);
}

Test(symlink, on_a_real_disk)
{
    struct pd_vfs *vfs;
    char root[] = "/tmp/perdure-symlink-XXXXXX", path[256];
    cr_assert_not_null(mkdtemp(root));
    OK(pd_vfs_new_threads(8, 1, &vfs, NULL));
    OK(pd_vfs_mkdir(vfs, AT(path, "here"), NULL));
    OK(pd_vfs_mkdir(vfs, AT(path, "there"), NULL));
    script(vfs, root);
    pd_vfs_free(vfs);
    snprintf(path, sizeof path, "rm -rf %s", root);
    cr_assert_eq(system(path), 0);
}

Test(symlink, on_the_simulated_disk)
{
    for (int volumes = 1; volumes <= 2; volumes++) {
        struct pd_disk_options options = {.seed = 3};
        struct pd_simulated_disk *disk;
        struct pd_vfs *vfs;
        if (volumes == 2) options.mounts[0] = (struct pd_disk_mount){.path = "/run/there"};
        OK(pd_simulated_disk_new(&options, &disk, NULL));
        OK(pd_simulated_disk_vfs(disk, 0, &vfs, NULL));
        if (volumes == 1) {
            OK(pd_vfs_mkdir(vfs, "/run", NULL));
            OK(pd_vfs_mkdir(vfs, "/run/there", NULL));
        } else {
            OK(pd_vfs_mkdir(vfs, "/run", NULL));
        }
        OK(pd_vfs_mkdir(vfs, "/run/here", NULL));
        script(vfs, "/run");
        pd_vfs_free(vfs);
        pd_simulated_disk_free(disk);
    }
}

/* A link is a name like any other: durable with its directory, lost without. */
Test(symlink, after_a_crash)
{
    const struct pd_disk_options options = {.seed = 5};
    struct pd_simulated_disk *disk, *clone;
    struct pd_vfs *vfs;
    struct pd_stat st;
    OK(pd_simulated_disk_new(&options, &disk, NULL));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, NULL));
    write_text(vfs, "/file", "near");
    OK(pd_simulated_symlink(vfs, "file", "/kept"));
    OK(pd_vfs_sync_dir(vfs, "/", NULL));
    OK(pd_simulated_symlink(vfs, "file", "/maybe"));
    pd_vfs_free(vfs);
    int lost = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        OK(pd_simulated_disk_clone(disk, &clone, NULL));
        pd_simulated_disk_crash(clone, 0, seed);
        OK(pd_simulated_disk_vfs(clone, 0, &vfs, NULL));
        expect_text(vfs, "/kept", "near");
        lost += pd_vfs_stat(vfs, "/maybe", &st, NULL) == PD_NOT_FOUND;
        pd_vfs_free(vfs);
        pd_simulated_disk_free(clone);
    }
    cr_assert(lost > 0 && lost < 40);
    pd_simulated_disk_free(disk);
}
