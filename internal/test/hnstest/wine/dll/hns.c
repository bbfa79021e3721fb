/* computenetwork.dll and vmcompute.dll, in one: each entry point sends its arguments to the simulated HNS, as text, and
 * returns what that returns. */
#include "link.h"
#include <objbase.h>

#define EXPORT __declspec(dllexport)
#define ARGS 3

static field utf8(const WCHAR *w)
{
    int n = w ? WideCharToMultiByte(CP_UTF8, 0, w, -1, NULL, 0, NULL, NULL) : 1;
    char *s = calloc(1, n);

    if (w)
        WideCharToMultiByte(CP_UTF8, 0, w, -1, s, n, NULL, NULL);
    return raw(s, n - 1);
}

static field handle_text(void *handle)
{
    char *s = malloc(24);

    return raw(s, sprintf(s, "%llu", (unsigned long long)(uintptr_t)handle));
}

static field guid_text(const GUID *g)
{
    char *s = malloc(40);

    return raw(s, sprintf(s, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", g->Data1, g->Data2, g->Data3,
                          g->Data4[0], g->Data4[1], g->Data4[2], g->Data4[3], g->Data4[4], g->Data4[5], g->Data4[6], g->Data4[7]));
}

/* utf16 is text for the caller, who frees it with CoTaskMemFree. */
static WCHAR *utf16(field text)
{
    int n = MultiByteToWideChar(CP_UTF8, 0, text.data, text.size, NULL, 0);
    WCHAR *w = CoTaskMemAlloc((n + 1) * sizeof *w);

    MultiByteToWideChar(CP_UTF8, 0, text.data, text.size, w, n);
    w[n] = 0;
    return w;
}

/* hcn makes a call and frees its arguments. Of the outputs those that the entry point has are not NULL. */
static HRESULT hcn(const char *name, int n, const field *args, WCHAR **document, void **handle, WCHAR **record)
{
    field request[1 + ARGS] = { str(name) };
    frame answer;
    HRESULT result;
    int i;

    memcpy(request + 1, args, n * sizeof *args);
    result = call(1 + n, request, &answer);
    for (i = 0; i < n; i++)
        free((void *)args[i].data);
    if (document)
        *document = result == 0 ? utf16(answer.f[1]) : NULL;
    if (handle && result == 0) {
        char number[24];
        snprintf(number, sizeof number, "%.*s", (int)answer.f[1].size, (const char *)answer.f[1].data);
        *handle = (void *)(uintptr_t)strtoull(number, NULL, 10);
    }
    if (record && answer.f[2].size)
        *record = utf16(answer.f[2]);
    free(answer.memory);
    return result;
}

#define CALL(name, document, handle, record, ...)                                  \
    do {                                                                           \
        field args[] = { __VA_ARGS__ };                                            \
        return hcn(name, sizeof args / sizeof *args, args, document, handle, record); \
    } while (0)

#define OBJECT(K)                                                                        \
    EXPORT HRESULT WINAPI HcnEnumerate##K##s(const WCHAR *query, WCHAR **list, WCHAR **record) \
    { CALL("HcnEnumerate" #K "s", list, NULL, record, utf8(query)); }                    \
    EXPORT HRESULT WINAPI HcnOpen##K(const GUID *id, void **handle, WCHAR **record)      \
    { CALL("HcnOpen" #K, NULL, handle, record, guid_text(id)); }                         \
    EXPORT HRESULT WINAPI HcnModify##K(void *handle, const WCHAR *settings, WCHAR **record) \
    { CALL("HcnModify" #K, NULL, NULL, record, handle_text(handle), utf8(settings)); }   \
    EXPORT HRESULT WINAPI HcnQuery##K##Properties(void *handle, const WCHAR *query, WCHAR **document, WCHAR **record) \
    { CALL("HcnQuery" #K "Properties", document, NULL, record, handle_text(handle), utf8(query)); } \
    EXPORT HRESULT WINAPI HcnDelete##K(const GUID *id, WCHAR **record)                   \
    { CALL("HcnDelete" #K, NULL, NULL, record, guid_text(id)); }                         \
    EXPORT HRESULT WINAPI HcnClose##K(void *handle)                                      \
    { CALL("HcnClose" #K, NULL, NULL, NULL, handle_text(handle)); }

#define CREATE(K)                                                                        \
    EXPORT HRESULT WINAPI HcnCreate##K(const GUID *id, const WCHAR *settings, void **handle, WCHAR **record) \
    { CALL("HcnCreate" #K, NULL, handle, record, guid_text(id), utf8(settings)); }

OBJECT(Network)
OBJECT(Endpoint)
OBJECT(Namespace)
OBJECT(LoadBalancer)
OBJECT(SdnRoute)
CREATE(Network)
CREATE(Namespace)
CREATE(LoadBalancer)
CREATE(SdnRoute)

EXPORT HRESULT WINAPI HcnCreateEndpoint(void *network, const GUID *id, const WCHAR *settings, void **handle, WCHAR **record)
{
    CALL("HcnCreateEndpoint", NULL, handle, record, handle_text(network), guid_text(id), utf8(settings));
}

EXPORT HRESULT WINAPI HNSCall(const WCHAR *method, const WCHAR *path, const WCHAR *object, WCHAR **response)
{
    CALL("HNSCall", response, NULL, NULL, utf8(method), utf8(path), utf8(object));
}

typedef void(CALLBACK *notification)(DWORD kind, void *context, HRESULT status, const WCHAR *data);

static void tell(listener *l, DWORD kind, const char *data)
{
    WCHAR *w = utf16(str(data));

    ((notification)l->callback)(kind, l->context, 0, w);
    CoTaskMemFree(w);
}

static HRESULT subscribe_to(const char *name, field of, void *callback, void *context, void **handle)
{
    field request[] = { str(name), of };
    frame answer;
    HRESULT result = call(2, request, &answer);

    if (result == 0)
        *handle = subscribe(answer.f[1], callback, context, tell);
    free(answer.memory);
    return result;
}

EXPORT HRESULT WINAPI HcnRegisterServiceCallback(void *callback, void *context, void **handle)
{
    return subscribe_to("HcnRegisterServiceCallback", str(""), callback, context, handle);
}

EXPORT HRESULT WINAPI HcnUnregisterServiceCallback(void *handle)
{
    return unsubscribe("HcnUnregisterServiceCallback", handle);
}

EXPORT HRESULT WINAPI HcnRegisterNetworkCallback(void *network, void *callback, void *context, void **handle)
{
    field of = handle_text(network);
    HRESULT result = subscribe_to("HcnRegisterNetworkCallback", of, callback, context, handle);

    free((void *)of.data);
    return result;
}

EXPORT HRESULT WINAPI HcnUnregisterNetworkCallback(void *handle)
{
    return unsubscribe("HcnUnregisterNetworkCallback", handle);
}
