#include "ckpt/objects/sign.h"
#include "ckpt/objects/url.h"

#include <criterion/criterion.h>
#include <string.h>

/* Examples of "Signature Calculations for the Authorization Header" in the Amazon S3 API Reference. */
static const struct pd_sign_keys example_keys = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
static const char empty_hash[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
#define EXAMPLE_TIME 1369353600u /* 2013-05-24T00:00:00Z */

static void check(const struct pd_sign_request *request, const char *target, const char *signature)
{
    struct pd_signed made;
    struct pd_error err = {0};
    cr_assert_eq(pd_sign(request, &example_keys, EXAMPLE_TIME, &made, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(made.target, target);
    cr_assert(strstr(made.headers, signature), "%s", made.headers);
    pd_signed_deinit(&made);
}

Test(sign, the_documentation_agrees)
{
    struct pd_sign_request request = {.dialect = &pd_sign_aws,
                                      .method = "GET",
                                      .host = "examplebucket.s3.amazonaws.com",
                                      .path = "/test.txt",
                                      .region = "us-east-1",
                                      .headers = {{"range", "bytes=0-9"}},
                                      .header_count = 1,
                                      .payload_hash = empty_hash};
    check(&request, "/test.txt", "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41\n");
    request.path = "/";
    request.header_count = 0;
    request.query[0] = (struct pd_sign_pair){"lifecycle", ""};
    request.query_count = 1;
    check(&request, "/?lifecycle=", "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543\n");
    request.query[0] = (struct pd_sign_pair){"prefix", "J"};
    request.query[1] = (struct pd_sign_pair){"max-keys", "2"};
    request.query_count = 2;
    check(&request, "/?max-keys=2&prefix=J", "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7\n");
}

Test(sign, urls)
{
    static const char *const bad[] = {
        "", "s3:/bucket", "s3://", "s3://b", "s3://Bucket/x", "s3://bucket/a/../b", "s3://bucket/.", "s3://a%2/x", "/tmp"};
    struct pd_object_url url;
    struct pd_error err = {0};
    cr_assert_eq(pd_object_url_parse("s3://my.bucket-1//a//b c/", &url, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(url.bucket, "my.bucket-1");
    cr_assert_str_eq(url.key, "a/b c");
    cr_assert_eq(pd_object_url_parse("s3://bucket", &url, &err), PD_OK);
    cr_assert_str_eq(url.key, "");
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(pd_object_url_parse(bad[i], &url, &err), PD_INVALID, "%s", bad[i]);
    char longest[PD_OBJECT_KEY_MAX + 20] = "s3://bucket/";
    memset(longest + 12, 'k', PD_OBJECT_KEY_MAX);
    cr_assert_eq(pd_object_url_parse(longest, &url, &err), PD_OK);
    longest[12 + PD_OBJECT_KEY_MAX] = 'k';
    cr_assert_eq(pd_object_url_parse(longest, &url, &err), PD_INVALID);
}
