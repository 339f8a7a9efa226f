/* Parses a server's XML (listings, errors, uploads, temporary credentials) element by element. Refuses document types and so
 * custom entities; limits depth and text length. */
#pragma once

#include "ckpt/base/status.h"

#define PD_XML_TEXT_MAX 8192u /* bytes of one element's text */
#define PD_XML_DEPTH_MAX 8u

/* Called at the end of each element.   path   element names from the root: "ListBucketResult/Contents/Key"
 *   text     the element's own text, without its child elements' text; zero-terminated, without other zero bytes
 *   returns  PD_OK to continue; any other status ends the parse, which returns it */
typedef pd_status (*pd_xml_element)(void *context, const char *path, const char *text, struct pd_error *err);

/*   errors  PD_CORRUPT: not XML, or over a limit (the message begins with `name`); PD_NO_MEMORY; any status of `element` */
PD_MUST_USE pd_status pd_xml_parse(const char *name, const char *text, size_t bytes, pd_xml_element element, void *context,
                                   struct pd_error *err);
