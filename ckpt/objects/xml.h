/* The XML of a server, element by element: a listing, an error, an upload, temporary credentials. No document types, no
 * entities of its own, and limits on depth and on the length of a text. */
#pragma once

#include "ckpt/base/status.h"

#define PD_XML_TEXT_MAX 8192u /* bytes of one element's text */
#define PD_XML_DEPTH_MAX 8u

/* An element that ends.   path   the names of it and of what holds it: "ListBucketResult/Contents/Key"
 *                         text   without what is in other elements inside it; ends with a zero byte, which is its only one
 *                         returns anything but PD_OK ends the reading with it */
typedef pd_status (*pd_xml_element)(void *context, const char *path, const char *text, struct pd_error *err);

/*   errors  PD_CORRUPT: no XML, or beyond the limits; `name` says what was read; PD_NO_MEMORY; what `element` returns */
PD_MUST_USE pd_status pd_xml_parse(const char *name, const char *text, size_t bytes, pd_xml_element element, void *context,
                                   struct pd_error *err);
