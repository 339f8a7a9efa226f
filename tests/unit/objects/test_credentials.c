#include "ckpt/objects/credentials.h"

#include <criterion/criterion.h>
#include <string.h>

static pd_status parse(const char *text, const char *profile, bool is_config, struct pd_profile *ret)
{
    struct pd_error err = {0};
    memset(ret, 0, sizeof *ret);
    return pd_profile_parse("file", text, strlen(text), profile, is_config, ret, &err);
}

Test(credentials, profiles)
{
    static const char text[] =
        "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=S=1\n\n[profile other]\nregion=eu-west-3\n"
        "s3 =\n  endpoint_url = http://nested\n[ second ]\r\naws_access_key_id=B\r\nrole_arn = r\r\n";
    struct pd_profile profile;
    cr_assert_eq(parse(text, "default", false, &profile), PD_OK);
    cr_assert(profile.is_there);
    cr_assert_str_eq(profile.access, "A");
    cr_assert_str_eq(profile.secret, "S=1");
    cr_assert_eq(parse(text, "second", false, &profile), PD_OK);
    cr_assert_str_eq(profile.access, "B");
    cr_assert_str_eq(profile.foreign, "role_arn");
    cr_assert_eq(parse(text, "other", true, &profile), PD_OK);
    cr_assert_str_eq(profile.region, "eu-west-3");
    cr_assert_str_eq(profile.endpoint, "");
    cr_assert_eq(parse(text, "second", true, &profile), PD_OK);
    cr_assert_not(profile.is_there); /* in this file it would be "profile second" */
    cr_assert_eq(parse("[default\n", "default", false, &profile), PD_INVALID);
    cr_assert_eq(parse("[default]\nwords\n", "default", false, &profile), PD_INVALID);
    char longest[300] = "[default]\nregion=";
    memset(longest + strlen(longest), 'r', 100);
    cr_assert_eq(parse(longest, "default", false, &profile), PD_INVALID);
}

Test(credentials, answers)
{
    static const char json[] = "{\"Code\":\"Success\",\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Token\":\"T\","
                               "\"Expiration\":\"2026-11-29T12:00:00Z\"}";
    static const char xml[] =
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>A</AccessKeyId>"
        "<SecretAccessKey>S</SecretAccessKey><SessionToken>T</SessionToken><Expiration>2026-11-29T12:00:00Z</Expiration>"
        "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"AccessKeyId\":\"A\"}",
                                      "{\"AccessKeyId\":\"A\\nB\",\"SecretAccessKey\":\"S\"}",
                                      "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Expiration\":\"soon\"}"};
    struct pd_credentials got;
    struct pd_error err = {0};
    cr_assert_eq(pd_credentials_parse_json("server", json, sizeof json - 1, &got, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(got.token, "T");
    cr_assert_eq(got.expires_s, 1795953600u);
    cr_assert_eq(pd_credentials_parse_xml("server", xml, sizeof xml - 1, &got, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(got.secret, "S");
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(pd_credentials_parse_json("server", bad[i], strlen(bad[i]), &got, &err), PD_CORRUPT, "%s", bad[i]);
        cr_assert_not(strstr(err.message, "A\\n"), "%s", err.message);
    }
}
