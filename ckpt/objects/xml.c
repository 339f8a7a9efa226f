#include "ckpt/objects/xml.h"

#include <expat.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct xml_reader {
    XML_Parser parser;
    pd_xml_element element;
    void *context;
    struct pd_error *err;
    pd_status status;
    const char *refusal; /* why a handler stopped the parser; NULL: none did */
    unsigned depth;
    size_t path_bytes, text_bytes;
    size_t text_starts[PD_XML_DEPTH_MAX]; /* offset in `text` of each open element's text */
    char path[512], text[PD_XML_TEXT_MAX + 1];
};

/* Expat may still call some handlers after this, so they check r->refusal. */
static void xml_stop(struct xml_reader *r, const char *refusal)
{
    if (!r->refusal) r->refusal = refusal;
    XML_StopParser(r->parser, XML_FALSE);
}

/* The parser ignores namespaces: xmlns is an attribute like others, and elements keep the names of the S3 documentation. */
static void XMLCALL xml_begin(void *context, const XML_Char *name, const XML_Char **attributes)
{
    struct xml_reader *r = context;
    (void)attributes;
    const size_t bytes = strlen(name);
    if (r->refusal) return;
    if (r->depth == PD_XML_DEPTH_MAX || r->path_bytes + bytes + 2 > sizeof r->path) {
        xml_stop(r, "elements are nested too deeply");
        return;
    }
    if (r->depth) r->path[r->path_bytes++] = '/';
    memcpy(r->path + r->path_bytes, name, bytes + 1);
    r->path_bytes += bytes;
    r->text_starts[r->depth++] = r->text_bytes;
}

static void XMLCALL xml_end(void *context, const XML_Char *name)
{
    struct xml_reader *r = context;
    if (r->refusal) return;
    r->text[r->text_bytes] = '\0';
    r->status = r->element(r->context, r->path, r->text + r->text_starts[r->depth - 1], r->err);
    if (r->status) xml_stop(r, "");
    r->text_bytes = r->text_starts[--r->depth];
    r->path_bytes -= strlen(name);
    if (r->depth) r->path_bytes--;
    r->path[r->path_bytes] = '\0';
}

static void XMLCALL xml_text(void *context, const XML_Char *text, int bytes)
{
    struct xml_reader *r = context;
    if (r->refusal) return;
    if (r->text_bytes + (size_t)bytes > PD_XML_TEXT_MAX) {
        xml_stop(r, "an element is too long");
        return;
    }
    memcpy(r->text + r->text_bytes, text, (size_t)bytes);
    r->text_bytes += (size_t)bytes;
}

static void XMLCALL xml_document_type(void *context, const XML_Char *name, const XML_Char *system_id,
                                      const XML_Char *public_id, int has_subset)
{
    (void)name, (void)system_id, (void)public_id, (void)has_subset;
    xml_stop(context, "it has a document type");
}

pd_status pd_xml_parse(const char *name, const char *text, size_t bytes, pd_xml_element element, void *context,
                       struct pd_error *err)
{
    if (bytes > INT_MAX) PD_FAIL(err, PD_CORRUPT, "%s: too long", name);
    struct xml_reader *r = calloc(1, sizeof *r);
    XML_Parser parser = XML_ParserCreate(NULL);
    if (!r || !parser) {
        free(r);
        if (parser) XML_ParserFree(parser);
        PD_FAIL(err, PD_NO_MEMORY, "reading %s", name);
    }
    *r = (struct xml_reader){.parser = parser, .element = element, .context = context, .err = err};
    XML_SetUserData(parser, r);
    XML_SetElementHandler(parser, xml_begin, xml_end);
    XML_SetCharacterDataHandler(parser, xml_text);
    XML_SetStartDoctypeDeclHandler(parser, xml_document_type);
    const bool is_read = XML_Parse(parser, text, (int)bytes, XML_TRUE) == XML_STATUS_OK;
    pd_status st = r->status;
    if (!is_read && !st)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s: line %lu: %s", name, XML_GetCurrentLineNumber(parser),
                          r->refusal ? r->refusal : XML_ErrorString(XML_GetErrorCode(parser)));
    XML_ParserFree(parser);
    free(r);
    return st;
}
