/* Symbolic links, by one script through every door: the simulated ones must say what the real ones say. */
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call) cr_assert_eq((call), PD_OK)
#define AT(variable, name) (snprintf(variable, sizeof variable, "%s/%s", root, name), variable)

static void write_text(struct pd_door *door, const char *path, const char *text)
{
    struct pd_file *file;
    OK(pd_file_open(door, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, NULL));
    OK(pd_file_write(file, 0, text, strlen(text), NULL));
    OK(pd_file_sync(file, NULL));
    OK(pd_file_close(file, NULL));
}

static void expect_text(struct pd_door *door, const char *path, const char *text)
{
    struct pd_file *file;
    struct pd_stat st;
    char data[64] = "";
    OK(pd_door_stat(door, path, &st, NULL));
    cr_assert_eq(st.bytes, strlen(text));
    OK(pd_file_open(door, path, PD_OPEN_READ, &file, NULL));
    OK(pd_file_read(file, 0, data, st.bytes, NULL));
    pd_file_close_readonly(file);
    cr_assert_str_eq(data, text);
}

/* root/here and root/there are directories, the second one maybe of another file system. */
static void script(struct pd_door *door, const char *root)
{
    char there[256], path[256], other[256], target[4096];
    struct pd_stat st;
    struct pd_listing listing;

    OK(pd_door_mkdir(door, AT(path, "there/step"), NULL));
    write_text(door, AT(path, "there/step/file"), "far");
    OK(pd_door_symlink(door, AT(there, "there"), AT(path, "here/stripe-1"), NULL));
    cr_assert_eq(pd_door_symlink(door, "x", path, NULL), PD_EXISTS);
    OK(pd_door_mkdir(door, AT(path, "here/step"), NULL));
    OK(pd_door_symlink(door, "../stripe-1/step/file", AT(path, "here/step/file"), NULL));
    expect_text(door, path, "far"); /* a link to a path that goes through a link */
    OK(pd_door_stat(door, AT(path, "here/stripe-1/step"), &st, NULL));
    cr_assert_eq(st.type, PD_ENTRY_DIRECTORY);
    OK(pd_door_list(door, path, &listing, NULL));
    cr_assert_eq(listing.count, 1u);
    pd_listing_deinit(&listing);
    OK(pd_door_sync_dir(door, AT(path, "here/stripe-1/step"), NULL));
    OK(pd_door_readlink(door, AT(path, "here/step/file"), target, NULL));
    cr_assert_str_eq(target, "../stripe-1/step/file");
    OK(pd_door_readlink(door, AT(path, "here/stripe-1"), target, NULL));
    cr_assert_str_eq(target, there);
    cr_assert_eq(pd_door_readlink(door, AT(path, "there/step/file"), target, NULL), PD_UNSUPPORTED);
    cr_assert_eq(pd_door_readlink(door, AT(path, "here/absent"), target, NULL), PD_NOT_FOUND);
    cr_assert_str_eq(target, there, "untouched by a failure");

    OK(pd_door_rename(door, AT(path, "here/step"), AT(other, "here/later"), NULL));
    expect_text(door, AT(path, "here/later/file"), "far");
    OK(pd_door_rename(door, path, AT(other, "here/moved"), NULL)); /* the link, and now it leads nowhere */
    cr_assert_eq(pd_door_stat(door, other, &st, NULL), PD_NOT_FOUND);
    OK(pd_door_unlink(door, other, NULL));
    OK(pd_door_symlink(door, "nowhere", AT(path, "here/new"), NULL));
    OK(pd_door_rename(door, path, AT(other, "here/stripe-1"), NULL)); /* replaces a link at once */
    cr_assert_eq(pd_door_stat(door, AT(path, "here/stripe-1/step"), &st, NULL), PD_NOT_FOUND);
    OK(pd_door_unlink(door, other, NULL));
    expect_text(door, AT(path, "there/step/file"), "far");
}

Test(symlink, on_a_real_disk)
{
    struct pd_door *door;
    char root[] = "/tmp/perdure-symlink-XXXXXX", path[256];
    cr_assert_not_null(mkdtemp(root));
    OK(pd_door_new_threads(8, 1, &door, NULL));
    OK(pd_door_mkdir(door, AT(path, "here"), NULL));
    OK(pd_door_mkdir(door, AT(path, "there"), NULL));
    script(door, root);
    pd_door_free(door);
    snprintf(path, sizeof path, "rm -rf %s", root);
    cr_assert_eq(system(path), 0);
}

Test(symlink, on_the_simulated_disk)
{
    for (int volumes = 1; volumes <= 2; volumes++) {
        struct pd_disk_options options = {.seed = 3};
        struct pd_simulated_disk *disk;
        struct pd_door *door;
        if (volumes == 2) options.mounts[0] = (struct pd_disk_mount){.path = "/run/there"};
        OK(pd_simulated_disk_new(&options, &disk, NULL));
        OK(pd_simulated_disk_door(disk, 0, &door, NULL));
        if (volumes == 1) {
            OK(pd_door_mkdir(door, "/run", NULL));
            OK(pd_door_mkdir(door, "/run/there", NULL));
        } else {
            OK(pd_door_mkdir(door, "/run", NULL));
        }
        OK(pd_door_mkdir(door, "/run/here", NULL));
        script(door, "/run");
        pd_door_free(door);
        pd_simulated_disk_free(disk);
    }
}

/* A link is a name like any other: durable with its directory, lost without. */
Test(symlink, after_a_crash)
{
    const struct pd_disk_options options = {.seed = 5};
    struct pd_simulated_disk *disk, *clone;
    struct pd_door *door;
    struct pd_stat st;
    OK(pd_simulated_disk_new(&options, &disk, NULL));
    OK(pd_simulated_disk_door(disk, 0, &door, NULL));
    write_text(door, "/file", "near");
    OK(pd_door_symlink(door, "file", "/kept", NULL));
    OK(pd_door_sync_dir(door, "/", NULL));
    OK(pd_door_symlink(door, "file", "/maybe", NULL));
    pd_door_free(door);
    int lost = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        OK(pd_simulated_disk_clone(disk, &clone, NULL));
        pd_simulated_disk_crash(clone, 0, seed);
        OK(pd_simulated_disk_door(clone, 0, &door, NULL));
        expect_text(door, "/kept", "near");
        lost += pd_door_stat(door, "/maybe", &st, NULL) == PD_NOT_FOUND;
        pd_door_free(door);
        pd_simulated_disk_free(clone);
    }
    cr_assert(lost > 0 && lost < 40);
    pd_simulated_disk_free(disk);
}
