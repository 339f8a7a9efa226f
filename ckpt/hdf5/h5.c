/* Wraps the HDF5 library and implements our own file driver for it. The only file that includes hdf5.h.
 *
 *   invariants  1. the library never touches a disk: the driver reads and writes sparse pages in memory, and drops chunks,
 *                  which the caller places
 *               2. every return value of the library is checked; its error stack is never printed but put into our message
 *               3. one mutex around the library, which need not be built thread-safe
 *               4. nothing depends on time, environment or address: the same calls give the same bytes
 */
#include "ckpt/hdf5/h5.h"
#include "ckpt/base/checked.h"
#include "ckpt/tensor/codec_zstd.h"
#include "ckpt/tensor/shapes.h"

#define H5_USE_110_API /* versions 1.12 and later keep the functions of 1.10 */
#include <hdf5.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define ADDRESS_SPACE_BYTES (64u << 20)

/* State of the driver. While `chunk` is set, raw data is allocated at the caller's offset and discarded. */
struct image {
    struct pd_h5_pages pages;
    const struct pd_h5_chunk *chunk; /* or NULL */
};

struct pd_h5_file {
    struct image image;
    hid_t file, contiguous; /* dataset creation: allocate early, never fill */
    hid_t link_creation;    /* link creation: make intermediate groups */
    hid_t types[PD_H5_TYPE_COUNT];
};

static pthread_mutex_t library_mutex = PTHREAD_MUTEX_INITIALIZER;
static hid_t driver_id = H5I_INVALID_HID;
static bool driver_lacks_memory; /* under library_mutex: the driver failed for lack of memory */

/* ---- the driver ---- */

struct driver_file {
    H5FD_t base; /* must be the first member for the library */
    struct image *image;
};

struct driver_info {
    struct image *image;
};

static struct image *image_of(const H5FD_t *file)
{
    return ((const struct driver_file *)(const void *)file)->image;
}

/* Returns the chunk being registered, if this is about raw data. */
static const struct pd_h5_chunk *chunk_of(const H5FD_t *file, H5FD_mem_t type)
{
    return type == H5FD_MEM_DRAW ? image_of(file)->chunk : NULL;
}

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t fapl, haddr_t max_address)
{
    (void)name, (void)flags, (void)max_address;
    const struct driver_info *info = H5Pget_driver_info(fapl);
    struct driver_file *file = info ? calloc(1, sizeof *file) : NULL;
    driver_lacks_memory |= info && !file;
    if (file) file->image = info->image;
    return (H5FD_t *)(void *)file;
}

static herr_t driver_close(H5FD_t *file)
{
    free(file);
    return 0;
}

static herr_t driver_query(const H5FD_t *file, unsigned long *ret_flags)
{
    (void)file;
    if (ret_flags) *ret_flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    const struct pd_h5_chunk *chunk = chunk_of(file, type);
    return chunk ? pd_round_up(chunk->offset + chunk->bytes, PD_H5_PAGE_BYTES) : image_of(file)->pages.bytes;
}

static herr_t driver_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t address)
{
    if (!chunk_of(file, type)) image_of(file)->pages.bytes = address;
    return 0;
}

static haddr_t driver_alloc(H5FD_t *file, H5FD_mem_t type, hid_t transfer, hsize_t bytes)
{
    (void)transfer;
    const struct pd_h5_chunk *chunk = chunk_of(file, type);
    if (chunk) return chunk->offset;
    const haddr_t address = image_of(file)->pages.bytes;
    image_of(file)->pages.bytes += bytes;
    return address;
}

static herr_t driver_read(H5FD_t *file, H5FD_mem_t type, hid_t transfer, haddr_t address, size_t bytes, void *buffer)
{
    (void)type, (void)transfer;
    pd_h5_pages_read(&image_of(file)->pages, address, buffer, bytes);
    return 0;
}

static herr_t driver_write(H5FD_t *file, H5FD_mem_t type, hid_t transfer, haddr_t address, size_t bytes, const void *buffer)
{
    (void)transfer;
    if (chunk_of(file, type)) return 0;
    const pd_status st = pd_h5_pages_write(&image_of(file)->pages, address, buffer, bytes, NULL);
    driver_lacks_memory |= st == PD_NO_MEMORY;
    return st == PD_OK ? 0 : -1;
}

static const H5FD_class_t driver_class = {
#ifdef H5FD_CLASS_VERSION /* HDF5 1.14 and later */
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)H5_VFD_MAX,
#endif
    .name = "perdure",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(struct driver_info),
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .alloc = driver_alloc,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eoa,
    .read = driver_read,
    .write = driver_write,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* ---- errors and turns ---- */

static herr_t take_innermost(unsigned position, const H5E_error2_t *entry, void *text)
{
    if (position == 0) snprintf(text, 256, "%s: %s", entry->func_name, entry->desc ? entry->desc : "no description");
    return 0;
}

static pd_status library_fail(struct pd_error *err, const char *what, const char *name)
{
    char text[256] = "no further description";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, text);
    H5Eclear2(H5E_DEFAULT);
    const bool lacks_memory = driver_lacks_memory;
    driver_lacks_memory = false;
    if (lacks_memory) PD_FAIL(err, PD_NO_MEMORY, "no memory to %s%s%s", what, name[0] ? " " : "", name);
    PD_FAIL(err, PD_BUG, "HDF5 cannot %s%s%s (%s)", what, name[0] ? " " : "", name, text);
}

/* The library must know a filter before it records its number; the filter never runs here. */
static size_t filter_refuses(unsigned flags, size_t count, const unsigned values[], size_t bytes, size_t *buffer_bytes,
                             void **buffer)
{
    (void)flags, (void)count, (void)values, (void)bytes, (void)buffer_bytes, (void)buffer;
    return 0;
}

static const H5Z_class2_t zstd_class = {.version = H5Z_CLASS_T_VERS,
                                        .id = PD_ZSTD_FILTER,
                                        .encoder_present = 1,
                                        .decoder_present = 1,
                                        .name = "zstd",
                                        .filter = filter_refuses};

/* The library crashes if it runs out of memory, so under an address space limit (ulimit -v) this checks that some is
 * left. The caller holds library_mutex: otherwise the library would miss what is mapped here for the check. */
static pd_status check_address_space(struct pd_error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return PD_OK;
    void *reserved = mmap(NULL, ADDRESS_SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        PD_FAIL(err, PD_UNSUPPORTED,
                "the limit of memory (ulimit -v) leaves less than %u MiB for the metadata of a file: raise it",
                ADDRESS_SPACE_BYTES >> 20);
    munmap(reserved, ADDRESS_SPACE_BYTES);
    return PD_OK;
}

static pd_status open_library(struct pd_error *err)
{
    PD_TRY(check_address_space(err));
    if (driver_id < 0) {
        H5dont_atexit(); /* its exit handler would race with our threads */
        /* The superblock extension and implicit groups use this default list, which stores the time of day unless told
         * otherwise. */
        if (H5open() >= 0 && H5Pset_obj_track_times(H5P_GROUP_CREATE_DEFAULT, false) >= 0 && H5Zregister(&zstd_class) >= 0)
            driver_id = H5FDregister(&driver_class);
    }
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return driver_id >= 0 ? PD_OK : library_fail(err, "start", "");
}

static pd_status leave_library(pd_status st)
{
    pthread_mutex_unlock(&library_mutex);
    return st;
}

static pd_status enter_library(struct pd_error *err)
{
    pthread_mutex_lock(&library_mutex);
    const pd_status st = open_library(err);
    return st ? leave_library(st) : PD_OK;
}

const char *pd_h5_version(void)
{
    static char text[32];
    unsigned major = 0, minor = 0, release = 0;
    pthread_mutex_lock(&library_mutex);
    if (!text[0] && H5get_libversion(&major, &minor, &release) >= 0)
        snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
    pthread_mutex_unlock(&library_mutex);
    return text;
}

/* ---- types ---- */

enum pd_h5_type pd_h5_type_of(enum pd_dtype dtype)
{
    static const enum pd_h5_type types[PD_DTYPE_COUNT] = {
        [PD_F32] = PD_H5_F32,  [PD_BF16] = PD_H5_BF16,  [PD_F16] = PD_H5_F16,         [PD_F64] = PD_H5_F64,
        [PD_I8] = PD_H5_I8,    [PD_F8_E4M3] = PD_H5_U8, [PD_F8_E5M2] = PD_H5_F8_E5M2, [PD_I16] = PD_H5_I16,
        [PD_I32] = PD_H5_I32,  [PD_I64] = PD_H5_I64,    [PD_U8] = PD_H5_U8,           [PD_U16] = PD_H5_U16,
        [PD_U32] = PD_H5_U32,  [PD_U64] = PD_H5_U64,    [PD_BOOL] = PD_H5_BOOL,       [PD_C64] = PD_H5_C64,
        [PD_C128] = PD_H5_C128};
    return types[dtype];
}

enum pd_h5_type pd_h5_view_type_of(enum pd_dtype dtype)
{
    return dtype == PD_BF16 || dtype == PD_F16 || dtype == PD_F8_E5M2 ? PD_H5_F32 : pd_h5_type_of(dtype);
}

/* A float of `bytes` with `mantissa_bits` low bits of mantissa. */
static hid_t make_small(size_t bytes, size_t mantissa_bits, size_t exponent_bias)
{
    const size_t sign = 8 * bytes - 1;
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    bool ok = type >= 0 && H5Tset_fields(type, sign, mantissa_bits, sign - mantissa_bits, 0, mantissa_bits) >= 0 &&
              H5Tset_precision(type, 8 * bytes) >= 0 && H5Tset_size(type, bytes) >= 0 &&
              H5Tset_ebias(type, exponent_bias) >= 0;
    if (ok) return type;
    if (type >= 0) H5Tclose(type);
    return H5I_INVALID_HID;
}

static hid_t make_bool(void)
{
    static const signed char no = 0, yes = 1;
    hid_t type = H5Tenum_create(H5T_STD_I8LE);
    if (type >= 0 && H5Tenum_insert(type, "FALSE", &no) >= 0 && H5Tenum_insert(type, "TRUE", &yes) >= 0) return type;
    if (type >= 0) H5Tclose(type);
    return H5I_INVALID_HID;
}

static hid_t make_complex(hid_t part, size_t part_bytes)
{
    hid_t type = H5Tcreate(H5T_COMPOUND, 2 * part_bytes);
    if (type >= 0 && H5Tinsert(type, "r", 0, part) >= 0 && H5Tinsert(type, "i", part_bytes, part) >= 0) return type;
    if (type >= 0) H5Tclose(type);
    return H5I_INVALID_HID;
}

static hid_t make_text(void)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0 && H5Tset_size(type, 1) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0) return type;
    if (type >= 0) H5Tclose(type);
    return H5I_INVALID_HID;
}

static pd_status make_types(struct pd_h5_file *file, struct pd_error *err)
{
    file->types[PD_H5_F32] = H5Tcopy(H5T_IEEE_F32LE);
    file->types[PD_H5_F64] = H5Tcopy(H5T_IEEE_F64LE);
    file->types[PD_H5_U64] = H5Tcopy(H5T_STD_U64LE);
    file->types[PD_H5_BF16] = make_small(2, 7, 127);
    file->types[PD_H5_F16] = make_small(2, 10, 15);
    file->types[PD_H5_F8_E5M2] = make_small(1, 2, 15);
    file->types[PD_H5_I8] = H5Tcopy(H5T_STD_I8LE);
    file->types[PD_H5_I16] = H5Tcopy(H5T_STD_I16LE);
    file->types[PD_H5_I32] = H5Tcopy(H5T_STD_I32LE);
    file->types[PD_H5_I64] = H5Tcopy(H5T_STD_I64LE);
    file->types[PD_H5_U8] = H5Tcopy(H5T_STD_U8LE);
    file->types[PD_H5_U16] = H5Tcopy(H5T_STD_U16LE);
    file->types[PD_H5_U32] = H5Tcopy(H5T_STD_U32LE);
    file->types[PD_H5_BOOL] = make_bool();
    file->types[PD_H5_C64] = make_complex(file->types[PD_H5_F32], 4);
    file->types[PD_H5_C128] = make_complex(file->types[PD_H5_F64], 8);
    file->types[PD_H5_TEXT] = make_text();
    for (int t = 0; t < PD_H5_TYPE_COUNT; t++)
        if (file->types[t] < 0) return library_fail(err, "make a type", "");
    return PD_OK;
}

/* ---- files ---- */

static void close_handles(struct pd_h5_file *file)
{
    for (int t = 0; t < PD_H5_TYPE_COUNT; t++)
        if (file->types[t] >= 0) H5Tclose(file->types[t]);
    if (file->contiguous >= 0) H5Pclose(file->contiguous);
    if (file->link_creation >= 0) H5Pclose(file->link_creation);
    H5Eclear2(H5E_DEFAULT);
}

/* Paged allocation, not H5Pset_alignment, which would put object headers into the gaps between data. */
static hid_t create_file(struct pd_h5_file *file, hid_t creation, hid_t access)
{
    struct driver_info info = {&file->image};
    bool ok = creation >= 0 && access >= 0 && H5Pset_driver(access, driver_id, &info) >= 0 &&
              H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
              H5Pset_obj_track_times(creation, false) >= 0 && H5Pset_file_space_page_size(creation, PD_H5_PAGE_BYTES) >= 0 &&
              H5Pset_file_space_strategy(creation, H5F_FSPACE_STRATEGY_PAGE, false, 1) >= 0;
    driver_lacks_memory = false;
    return ok ? H5Fcreate("perdure", H5F_ACC_TRUNC, creation, access) : H5I_INVALID_HID;
}

static pd_status h5_open_file(struct pd_h5_file *file, struct pd_error *err)
{
    PD_TRY(make_types(file, err));
    file->contiguous = H5Pcreate(H5P_DATASET_CREATE);
    file->link_creation = H5Pcreate(H5P_LINK_CREATE);
    bool ok = file->contiguous >= 0 && file->link_creation >= 0 && H5Pset_layout(file->contiguous, H5D_CONTIGUOUS) >= 0 &&
              H5Pset_alloc_time(file->contiguous, H5D_ALLOC_TIME_EARLY) >= 0 &&
              H5Pset_fill_time(file->contiguous, H5D_FILL_TIME_NEVER) >= 0 &&
              H5Pset_obj_track_times(file->contiguous, false) >= 0 &&
              H5Pset_create_intermediate_group(file->link_creation, 1) >= 0;
    PD_TRY(ok ? PD_OK : library_fail(err, "make property lists", ""));
    hid_t creation = H5Pcreate(H5P_FILE_CREATE), access = H5Pcreate(H5P_FILE_ACCESS);
    file->file = create_file(file, creation, access);
    pd_status st = file->file >= 0 ? PD_OK : library_fail(err, "create a file in memory", "");
    if (creation >= 0) H5Pclose(creation);
    if (access >= 0) H5Pclose(access);
    return st;
}

pd_status pd_h5_new(struct pd_h5_file **ret_file, struct pd_error *err)
{
    struct pd_h5_file *file = calloc(1, sizeof *file);
    if (!file) PD_FAIL(err, PD_NO_MEMORY, "no memory for an HDF5 file");
    file->file = file->contiguous = file->link_creation = H5I_INVALID_HID;
    for (int t = 0; t < PD_H5_TYPE_COUNT; t++)
        file->types[t] = H5I_INVALID_HID;
    pd_status st = enter_library(err);
    if (!st) {
        st = h5_open_file(file, err);
        leave_library(st);
    }
    if (st)
        pd_h5_free(file);
    else
        *ret_file = file;
    return st;
}

void pd_h5_free(struct pd_h5_file *file)
{
    if (!file) return;
    pthread_mutex_lock(&library_mutex);
    if (driver_id >= 0) {
        if (file->file >= 0) H5Fclose(file->file);
        close_handles(file);
        H5garbage_collect(); /* free lists: an index takes 16 KiB an object */
    }
    pthread_mutex_unlock(&library_mutex);
    pd_h5_pages_deinit(&file->image.pages);
    free(file);
}

pd_status pd_h5_finish(struct pd_h5_file *file, struct pd_h5_pages *ret_pages, struct pd_error *err)
{
    pd_status st = enter_library(err);
    if (!st) {
        if (H5Fclose(file->file) < 0) st = library_fail(err, "close the file", "");
        file->file = H5I_INVALID_HID;
        leave_library(st);
    }
    if (!st) {
        *ret_pages = file->image.pages;
        file->image.pages = (struct pd_h5_pages){0};
    }
    pd_h5_free(file);
    return st;
}

/* ---- attributes ---- */

static pd_status note(struct pd_h5_file *file, const char *object, const char *name, hid_t type, const void *value,
                      struct pd_error *err)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = type < 0 || space < 0
                          ? H5I_INVALID_HID
                          : H5Acreate_by_name(file->file, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = attribute >= 0 && H5Awrite(attribute, type, value) >= 0;
    if (attribute >= 0 && H5Aclose(attribute) < 0) ok = false;
    pd_status st = ok ? PD_OK : library_fail(err, "write attribute", name);
    if (space >= 0) H5Sclose(space);
    return st;
}

pd_status pd_h5_note(struct pd_h5_file *file, const char *object, const char *name, const char *text, struct pd_error *err)
{
    PD_TRY(enter_library(err));
    hid_t type = H5Tcopy(H5T_C_S1);
    bool ok = type >= 0 && H5Tset_size(type, strlen(text) + 1) >= 0;
    pd_status st = ok ? note(file, object, name, type, text, err) : library_fail(err, "size attribute", name);
    if (type >= 0) H5Tclose(type);
    return leave_library(st);
}

pd_status pd_h5_note_u64(struct pd_h5_file *file, const char *object, const char *name, uint64_t value, struct pd_error *err)
{
    PD_TRY(enter_library(err));
    unsigned char bytes[8];
    for (int b = 0; b < 8; b++)
        bytes[b] = (unsigned char)(value >> 8 * b);
    return leave_library(note(file, object, name, file->types[PD_H5_U64], bytes, err));
}

/* ---- datasets ---- */

static hid_t make_space(uint32_t ndim, const uint64_t *shape)
{
    hsize_t dims[PD_SHAPE_DIMS_MAX];
    PD_CHECK(ndim >= 1 && ndim <= PD_SHAPE_DIMS_MAX);
    for (uint32_t d = 0; d < ndim; d++)
        dims[d] = shape[d];
    return H5Screate_simple((int)ndim, dims, NULL);
}

static pd_status reserve(struct pd_h5_file *file, const char *path, hid_t type, uint32_t ndim, const uint64_t *shape,
                         uint64_t *ret_offset, struct pd_error *err)
{
    hid_t space = make_space(ndim, shape);
    hid_t dataset = space < 0
                        ? H5I_INVALID_HID
                        : H5Dcreate2(file->file, path, type, space, file->link_creation, file->contiguous, H5P_DEFAULT);
    haddr_t offset = dataset < 0 ? HADDR_UNDEF : H5Dget_offset(dataset);
    pd_status st = offset != HADDR_UNDEF ? PD_OK : library_fail(err, "create dataset", path);
    if (dataset >= 0 && H5Dclose(dataset) < 0 && !st) st = library_fail(err, "close dataset", path);
    if (space >= 0) H5Sclose(space);
    if (!st) *ret_offset = offset;
    return st;
}

pd_status pd_h5_dataset(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                        const uint64_t *shape, uint64_t *ret_offset, struct pd_error *err)
{
    PD_CHECK((unsigned)type < PD_H5_TYPE_COUNT);
    PD_TRY(enter_library(err));
    return leave_library(reserve(file, path, file->types[type], ndim, shape, ret_offset, err));
}

/* Adds one index entry a chunk: the library believes that it wrote the chunk there. */
static bool name_chunks(struct pd_h5_file *file, hid_t dataset, uint32_t ndim, const uint64_t *shape,
                        const uint64_t *chunk_shape, const struct pd_h5_chunk *chunks)
{
    static const unsigned char nothing[1];
    hsize_t at[PD_TENSOR_DIMS_MAX] = {0};
    bool ok = true;
    for (const struct pd_h5_chunk *chunk = chunks; ok; chunk++) {
        file->image.chunk = chunk;
        ok = H5Dwrite_chunk(dataset, H5P_DEFAULT, chunk->filter_mask, at, chunk->bytes, nothing) >= 0;
        file->image.chunk = NULL;
        uint32_t d = ndim;
        while (d > 0 && (at[d - 1] += chunk_shape[d - 1]) >= shape[d - 1])
            at[--d] = 0;
        if (d == 0) break;
    }
    return ok;
}

static hid_t chunked_creation(uint32_t ndim, const uint64_t *chunk_shape, int zstd_level)
{
    hsize_t dims[PD_TENSOR_DIMS_MAX];
    const unsigned level = (unsigned)zstd_level;
    for (uint32_t d = 0; d < ndim; d++)
        dims[d] = chunk_shape[d];
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    if (creation >= 0 && H5Pset_chunk(creation, (int)ndim, dims) >= 0 && H5Pset_obj_track_times(creation, false) >= 0 &&
        H5Pset_alloc_time(creation, H5D_ALLOC_TIME_INCR) >= 0 && H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER) >= 0 &&
        H5Pset_shuffle(creation) >= 0 && H5Pset_filter(creation, PD_ZSTD_FILTER, H5Z_FLAG_OPTIONAL, 1, &level) >= 0)
        return creation;
    if (creation >= 0) H5Pclose(creation);
    return H5I_INVALID_HID;
}

static pd_status create_chunked(struct pd_h5_file *file, const char *path, hid_t type, hid_t space, hid_t creation,
                                uint64_t *ret_header, hid_t *ret_dataset, struct pd_error *err)
{
    H5O_info_t info;
    hid_t dataset = space < 0 || creation < 0
                        ? H5I_INVALID_HID
                        : H5Dcreate2(file->file, path, type, space, file->link_creation, creation, H5P_DEFAULT);
    if (dataset < 0) return library_fail(err, "create dataset", path);
    *ret_dataset = dataset;
    if (H5Oget_info2(dataset, &info, H5O_INFO_BASIC) < 0) return library_fail(err, "find dataset", path);
    *ret_header = info.addr;
    return PD_OK;
}

pd_status pd_h5_chunked(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                        const uint64_t *shape, const uint64_t *chunk_shape, int zstd_level, const struct pd_h5_chunk *chunks,
                        uint64_t *ret_header, struct pd_error *err)
{
    PD_CHECK((unsigned)type < PD_H5_TYPE_COUNT);
    PD_TRY(enter_library(err));
    hid_t dataset = H5I_INVALID_HID, space = make_space(ndim, shape);
    hid_t creation = chunked_creation(ndim, chunk_shape, zstd_level);
    pd_status st = create_chunked(file, path, file->types[type], space, creation, ret_header, &dataset, err);
    if (!st && !name_chunks(file, dataset, ndim, shape, chunk_shape, chunks))
        st = library_fail(err, "index chunks of", path);
    if (dataset >= 0 && H5Dclose(dataset) < 0 && !st) st = library_fail(err, "close dataset", path);
    if (creation >= 0) H5Pclose(creation);
    if (space >= 0) H5Sclose(space);
    return leave_library(st);
}

pd_status pd_h5_records(struct pd_h5_file *file, const char *path, const struct pd_h5_field *fields, uint32_t field_count,
                        uint64_t rows, uint64_t *ret_offset, struct pd_error *err)
{
    PD_TRY(enter_library(err));
    hid_t record = H5Tcreate(H5T_COMPOUND, (size_t)field_count * 8);
    bool ok = record >= 0;
    for (uint32_t f = 0; ok && f < field_count; f++) {
        PD_CHECK(fields[f].type == PD_H5_U64 || fields[f].type == PD_H5_F64);
        ok = H5Tinsert(record, fields[f].name, (size_t)f * 8, file->types[fields[f].type]) >= 0;
    }
    pd_status st = ok ? reserve(file, path, record, 1, &rows, ret_offset, err) : library_fail(err, "make records of", path);
    if (record >= 0) H5Tclose(record);
    return leave_library(st);
}

/* ---- virtual datasets ---- */

/* Reuses one selection for all sources: creating spaces is most of the cost. Dimensions that a source has joined are whole
 * in it; the library maps elements in their order, whatever the dimensions. */
static bool add_source(hid_t creation, hid_t whole, uint32_t ndim, const uint64_t *shape, const struct pd_h5_source *source)
{
    const uint32_t kept = ndim < PD_TENSOR_DIMS_MAX ? ndim : PD_TENSOR_DIMS_MAX;
    hsize_t start[PD_SHAPE_DIMS_MAX] = {0}, count[PD_SHAPE_DIMS_MAX], stored[PD_TENSOR_DIMS_MAX], inner = 1;
    for (uint32_t d = kept; d < ndim; d++)
        inner *= count[d] = shape[d];
    for (uint32_t d = 0; d < kept; d++) {
        const hsize_t joined = d == PD_TENSOR_DIMS_MAX - 1 ? inner : 1;
        stored[d] = source->box.count[d];
        start[d] = source->box.start[d] / joined;
        count[d] = stored[d] / joined;
    }
    hid_t space = H5Screate_simple((int)kept, stored, NULL);
    bool ok = space >= 0 && H5Sselect_hyperslab(whole, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
              H5Pset_virtual(creation, whole, source->file_name, source->dataset, space) >= 0;
    if (space >= 0) H5Sclose(space);
    return ok;
}

static pd_status create_virtual(struct pd_h5_file *file, const char *path, enum pd_h5_type type, hid_t creation, hid_t whole,
                                uint32_t ndim, const uint64_t *shape, const struct pd_h5_source *sources,
                                uint64_t source_count, struct pd_error *err)
{
    const float fill = NAN;
    const bool is_float = type == PD_H5_F32 || type == PD_H5_F64; /* the library's own fill value is 0 */
    bool ok = creation >= 0 && whole >= 0 && H5Pset_obj_track_times(creation, false) >= 0 &&
              (!is_float || H5Pset_fill_value(creation, H5T_NATIVE_FLOAT, &fill) >= 0);
    for (uint64_t s = 0; ok && s < source_count; s++)
        ok = add_source(creation, whole, ndim, shape, &sources[s]);
    ok = ok && H5Sselect_all(whole) >= 0;
    hid_t dataset = !ok ? H5I_INVALID_HID
                        : H5Dcreate2(file->file, path, file->types[type], whole, file->link_creation, creation, H5P_DEFAULT);
    if (dataset < 0 || H5Dclose(dataset) < 0) return library_fail(err, "create virtual dataset", path);
    return PD_OK;
}

pd_status pd_h5_virtual(struct pd_h5_file *file, const char *path, enum pd_h5_type type, uint32_t ndim,
                        const uint64_t *shape, const struct pd_h5_source *sources, uint64_t source_count,
                        struct pd_error *err)
{
    PD_TRY(enter_library(err));
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE), whole = make_space(ndim, shape);
    pd_status st = create_virtual(file, path, type, creation, whole, ndim, shape, sources, source_count, err);
    if (creation >= 0) H5Pclose(creation);
    if (whole >= 0) H5Sclose(whole);
    return leave_library(st);
}

/* ---- names ---- */

/* '/' separates groups, '%' is a pattern in virtual datasets, "." is the group itself. */
static pd_status h5_check_name(const struct pd_tensor *tensor, struct pd_error *err)
{
    size_t length = strnlen(tensor->name, PD_TENSOR_NAME_MAX);
    if (length == 0 || length == PD_TENSOR_NAME_MAX)
        PD_FAIL(err, PD_INVALID, "a tensor's name must have 1 to %d characters", PD_TENSOR_NAME_MAX - 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)tensor->name[i];
        if (c <= ' ' || c > '~' || strchr("/%[]", c))
            PD_FAIL(err, PD_INVALID, "tensor \"%s\": character %zu of its name cannot stand in a dataset's name",
                    tensor->name, i + 1);
    }
    if (strcmp(tensor->name, ".") == 0 || strcmp(tensor->name, "..") == 0)
        PD_FAIL(err, PD_INVALID, "tensor \"%s\": this name cannot be a dataset's name", tensor->name);
    return PD_OK;
}

pd_status pd_h5_tensor_path(const struct pd_tensor *tensor, enum pd_kind kind, char *ret_path, struct pd_error *err)
{
    PD_TRY(h5_check_name(tensor, err));
    snprintf(ret_path, PD_H5_PATH_MAX, "/%s/%s", pd_kind_name(kind), tensor->name);
    return PD_OK;
}

pd_status pd_h5_box_path(const struct pd_tensor *tensor, enum pd_kind kind, const struct pd_box *box, char *ret_path,
                         struct pd_error *err)
{
    PD_TRY(pd_h5_tensor_path(tensor, kind, ret_path, err));
    size_t used = strlen(ret_path);
    for (uint32_t d = 0; d < pd_tensor_file_dims(tensor); d++)
        used += (size_t)snprintf(ret_path + used, PD_H5_PATH_MAX - used, "%c%llu:%llu", d ? ',' : '[',
                                 (unsigned long long)box->start[d], (unsigned long long)(box->start[d] + box->count[d]));
    PD_CHECK(used + 2 <= PD_H5_PATH_MAX);
    ret_path[used] = ']';
    ret_path[used + 1] = '\0';
    return PD_OK;
}
