/* An SVG document as a PNG file, by librsvg and cairo: opened when they are needed, so that a tool without pictures needs
 * neither. What is called is declared here, as their manuals have it. */
#include "tools/report/page.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define WRITE_ERROR 11 /* CAIRO_STATUS_WRITE_ERROR */
#define SCALE 1.5      /* pixels of the file for one of the drawing: legible where a chat scales it down */

struct rectangle {
    double x, y, width, height;
};

static struct {
    void *(*rsvg_handle_new_from_data)(const unsigned char *data, size_t bytes, void **error);
    int (*rsvg_handle_get_intrinsic_size_in_pixels)(void *handle, double *ret_width, double *ret_height);
    int (*rsvg_handle_render_document)(void *handle, void *cairo, const struct rectangle *viewport, void **error);
    void *(*cairo_image_surface_create)(int format, int width, int height);
    void *(*cairo_create)(void *surface);
    int (*cairo_surface_write_to_png_stream)(void *surface, int (*write)(void *, const unsigned char *, unsigned), void *);
    const char *(*cairo_status_to_string)(int status);
    void (*cairo_destroy)(void *cairo);
    void (*cairo_surface_destroy)(void *surface);
    void (*g_object_unref)(void *object);
} call;

static pd_status load(struct pd_error *err)
{
    static const char *const libraries[] = {"librsvg-2.so.2", "libcairo.so.2", "libgobject-2.0.so.0"};
    const struct {
        void *slot;
        const char *name;
        int library;
    } all[] = {{&call.rsvg_handle_new_from_data, "rsvg_handle_new_from_data", 0},
               {&call.rsvg_handle_get_intrinsic_size_in_pixels, "rsvg_handle_get_intrinsic_size_in_pixels", 0},
               {&call.rsvg_handle_render_document, "rsvg_handle_render_document", 0},
               {&call.cairo_image_surface_create, "cairo_image_surface_create", 1},
               {&call.cairo_create, "cairo_create", 1},
               {&call.cairo_surface_write_to_png_stream, "cairo_surface_write_to_png_stream", 1},
               {&call.cairo_status_to_string, "cairo_status_to_string", 1},
               {&call.cairo_destroy, "cairo_destroy", 1},
               {&call.cairo_surface_destroy, "cairo_surface_destroy", 1},
               {&call.g_object_unref, "g_object_unref", 2}};
    void *opened[3];
    for (int i = 0; i < 3; i++) {
        opened[i] = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (!opened[i])
            PD_FAIL(err, PD_UNSUPPORTED,
                    "--png needs librsvg, and %s was not found: apt-get install librsvg2-2, or open the HTML report",
                    libraries[i]);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *(void **)all[i].slot = dlsym(opened[all[i].library], all[i].name);
        if (!*(void **)all[i].slot)
            PD_FAIL(err, PD_UNSUPPORTED, "--png needs librsvg 2.52 or later: %s has no %s; open the HTML report instead",
                    libraries[all[i].library], all[i].name);
    }
    return PD_OK;
}

static int append(void *file, const unsigned char *data, unsigned bytes)
{
    return fwrite(data, 1, bytes, file) == bytes ? 0 : WRITE_ERROR;
}

/* Cairo's own way to a file takes a full disk for success where its stream holds the last bytes back. */
static pd_status write_file(void *surface, const char *path, struct pd_error *err)
{
    FILE *file = fopen(path, "we");
    if (!file) PD_FAIL_ERRNO(err, errno, "%s: name another file with --png=FILE", path);
    errno = 0;
    const int status = call.cairo_surface_write_to_png_stream(surface, append, file);
    int number = errno;
    if (fclose(file))
        number = errno;
    else if (!status)
        return PD_OK;
    if (number) PD_FAIL_ERRNO(err, number, "%s: writing it; name another file with --png=FILE", path);
    PD_FAIL(err, PD_IO, "%s: writing it: %s; name another file with --png=FILE", path, call.cairo_status_to_string(status));
}

static pd_status render(void *handle, const char *path, struct pd_error *err)
{
    double width = 0, height = 0;
    void *ignored = NULL;
    if (!call.rsvg_handle_get_intrinsic_size_in_pixels(handle, &width, &height))
        PD_FAIL(err, PD_BUG, "%s: a drawing without a size", path);
    const struct rectangle viewport = {0, 0, width * SCALE, height * SCALE};
    void *surface = call.cairo_image_surface_create(0, (int)viewport.width, (int)viewport.height);
    void *cairo = call.cairo_create(surface);
    const bool is_drawn = call.rsvg_handle_render_document(handle, cairo, &viewport, &ignored);
    const pd_status st = is_drawn ? write_file(surface, path, err) : PD_OK;
    call.cairo_destroy(cairo);
    call.cairo_surface_destroy(surface);
    if (!is_drawn) PD_FAIL(err, PD_BUG, "%s: librsvg cannot draw it", path);
    return st;
}

pd_status pd_png_write(const char *svg, size_t bytes, const char *path, struct pd_error *err)
{
    void *ignored = NULL;
    PD_TRY(load(err));
    void *handle = call.rsvg_handle_new_from_data((const unsigned char *)svg, bytes, &ignored);
    if (!handle) PD_FAIL(err, PD_BUG, "%s: librsvg cannot read the drawing", path);
    const pd_status st = render(handle, path, err);
    call.g_object_unref(handle);
    return st;
}
