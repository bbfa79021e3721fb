/* hnetcfg.dll: the COM interface of the Windows Firewall, of which each object is one of the simulated machine. All
 * objects have the interface IDispatch alone. A call of it is a call NetFw of the machine, with the object's name, the
 * member's name and an argument; firewall.go says how values are written. */
#define COBJMACROS
#include "link.h"
#include <oleauto.h>

/* Members of all objects; DISPIDs are their positions, from 1 on. */
static const WCHAR *const members[] = {
    L"CurrentProfileTypes", L"FirewallEnabled", L"BlockAllInboundTraffic", L"DefaultInboundAction", L"Rules",
    L"_NewEnum", L"Add", L"Remove", L"Name", L"Grouping", L"Description", L"Enabled", L"Direction", L"Action",
    L"Protocol", L"LocalPorts", L"Profiles", L"ApplicationName", L"ServiceName", L"LocalAddresses", L"RemoteAddresses",
    L"RemotePorts", L"Interfaces", L"InterfaceTypes",
};

static const CLSID policy_class = { 0xe2b3c97f, 0x6ae1, 0x41ac, { 0x81, 0x7a, 0xf6, 0xf9, 0x21, 0x66, 0xd7, 0xdd } };
static const CLSID rule_class = { 0x2c5bc43e, 0x3369, 0x4c33, { 0xab, 0x0c, 0xbe, 0x94, 0x69, 0x67, 0x7a, 0xf4 } };

typedef struct {
    IDispatch IDispatch_iface;
    LONG references;
    char name[32]; /* at the machine */
} object;

/* An enumerator has the names of objects, separated by spaces. */
typedef struct {
    IEnumVARIANT IEnumVARIANT_iface;
    LONG references;
    char *names, *next;
} enumerator;

static HRESULT new_object(const char *name, size_t size, IDispatch **out);
static HRESULT new_enumerator(const char *names, size_t size, IUnknown **out);

static HRESULT STDMETHODCALLTYPE object_query(IDispatch *self, REFIID id, void **out)
{
    *out = NULL;
    if (!IsEqualIID(id, &IID_IUnknown) && !IsEqualIID(id, &IID_IDispatch))
        return E_NOINTERFACE;
    IDispatch_AddRef(self);
    *out = self;
    return S_OK;
}

static ULONG STDMETHODCALLTYPE object_add_ref(IDispatch *self) { return InterlockedIncrement(&((object *)self)->references); }

static ULONG STDMETHODCALLTYPE object_release(IDispatch *self)
{
    ULONG left = InterlockedDecrement(&((object *)self)->references);

    if (!left)
        free(self);
    return left;
}

static HRESULT STDMETHODCALLTYPE object_type_count(IDispatch *self, UINT *count)
{
    (void)self;
    *count = 0;
    return S_OK;
}

static HRESULT STDMETHODCALLTYPE object_type(IDispatch *self, UINT index, LCID language, ITypeInfo **out)
{
    (void)self;
    (void)index;
    (void)language;
    *out = NULL;
    return E_NOTIMPL;
}

static HRESULT STDMETHODCALLTYPE object_ids(IDispatch *self, REFIID id, LPOLESTR *names, UINT count, LCID language, DISPID *ids)
{
    DISPID i;

    (void)self;
    (void)id;
    (void)language;
    for (i = 0; count == 1 && i < (DISPID)(sizeof members / sizeof *members); i++)
        if (!lstrcmpiW(names[0], members[i])) {
            ids[0] = i + 1;
            return S_OK;
        }
    return DISP_E_UNKNOWNNAME;
}

static char *utf8(const WCHAR *text)
{
    int size = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *out = malloc(size + 1);

    WideCharToMultiByte(CP_UTF8, 0, text, -1, out, size, NULL, NULL);
    return out;
}

/* encode writes an argument as the machine reads it. The caller frees it. */
static char *encode(const VARIANT *v)
{
    char *out = NULL, *text = NULL;
    size_t size = 64;

    if (V_VT(v) == VT_BSTR) {
        text = utf8(V_BSTR(v) ? V_BSTR(v) : L"");
        size += strlen(text);
    }
    out = calloc(1, size);
    switch (V_VT(v)) {
    case VT_I4:
        snprintf(out, size, "i%ld", (long)V_I4(v));
        break;
    case VT_BOOL:
        snprintf(out, size, "b%d", V_BOOL(v) != VARIANT_FALSE);
        break;
    case VT_BSTR:
        snprintf(out, size, "s%s", text);
        break;
    case VT_DISPATCH:
        snprintf(out, size, "o%s", ((object *)V_DISPATCH(v))->name);
        break;
    }
    free(text);
    return out;
}

/* decode reads a result; an empty text is an empty VARIANT. */
static HRESULT decode(const char *text, size_t size, VARIANT *v)
{
    char *copy;
    HRESULT result = S_OK;

    VariantInit(v);
    if (size == 0)
        return S_OK;
    copy = calloc(1, size + 1);
    memcpy(copy, text, size);
    switch (*copy) {
    case 'i':
        V_VT(v) = VT_I4;
        V_I4(v) = atoi(copy + 1);
        break;
    case 'b':
        V_VT(v) = VT_BOOL;
        V_BOOL(v) = copy[1] == '1' ? VARIANT_TRUE : VARIANT_FALSE;
        break;
    case 's': {
        int length = MultiByteToWideChar(CP_UTF8, 0, copy + 1, -1, NULL, 0);

        V_VT(v) = VT_BSTR;
        V_BSTR(v) = SysAllocStringLen(NULL, length - 1);
        MultiByteToWideChar(CP_UTF8, 0, copy + 1, -1, V_BSTR(v), length);
        break;
    }
    case 'o':
        V_VT(v) = VT_DISPATCH;
        result = new_object(copy + 1, size - 1, &V_DISPATCH(v));
        break;
    case 'l':
        V_VT(v) = VT_UNKNOWN;
        result = new_enumerator(copy + 1, size - 1, &V_UNKNOWN(v));
        break;
    default:
        result = E_FAIL;
    }
    free(copy);
    return result;
}

static HRESULT STDMETHODCALLTYPE object_invoke(IDispatch *self, DISPID id, REFIID iid, LCID language, WORD flags,
                                               DISPPARAMS *parameters, VARIANT *result, EXCEPINFO *exception, UINT *bad)
{
    field request[] = { str("NetFw"), str(((object *)self)->name), { 0 }, { 0 }, str("") };
    char *member, *argument = NULL;
    VARIANT ignored;
    frame answer;
    HRESULT hr;

    (void)iid;
    (void)language;
    (void)exception;
    (void)bad;
    if (id < 1 || id > (DISPID)(sizeof members / sizeof *members) || parameters->cArgs > 1)
        return DISP_E_MEMBERNOTFOUND;
    request[2] = str(member = utf8(members[id - 1]));
    request[3] = str(flags & DISPATCH_PROPERTYPUT ? "put" : "get");
    if (parameters->cArgs == 1)
        request[4] = str(argument = encode(&parameters->rgvarg[0]));
    hr = call(5, request, &answer);
    if (SUCCEEDED(hr))
        hr = decode(answer.f[1].data, answer.f[1].size, result ? result : &ignored);
    free(answer.memory);
    free(member);
    free(argument);
    return hr;
}

static IDispatchVtbl object_vtable = {
    object_query, object_add_ref, object_release, object_type_count, object_type, object_ids, object_invoke,
};

static HRESULT new_object(const char *name, size_t size, IDispatch **out)
{
    object *o = calloc(1, sizeof *o);

    o->IDispatch_iface.lpVtbl = &object_vtable;
    o->references = 1;
    memcpy(o->name, name, min(size, sizeof o->name - 1));
    *out = &o->IDispatch_iface;
    return S_OK;
}

static HRESULT STDMETHODCALLTYPE enumerator_query(IEnumVARIANT *self, REFIID id, void **out)
{
    *out = NULL;
    if (!IsEqualIID(id, &IID_IUnknown) && !IsEqualIID(id, &IID_IEnumVARIANT))
        return E_NOINTERFACE;
    IEnumVARIANT_AddRef(self);
    *out = self;
    return S_OK;
}

static ULONG STDMETHODCALLTYPE enumerator_add_ref(IEnumVARIANT *self)
{
    return InterlockedIncrement(&((enumerator *)self)->references);
}

static ULONG STDMETHODCALLTYPE enumerator_release(IEnumVARIANT *self)
{
    enumerator *e = (enumerator *)self;
    ULONG left = InterlockedDecrement(&e->references);

    if (!left) {
        free(e->names);
        free(e);
    }
    return left;
}

static HRESULT STDMETHODCALLTYPE enumerator_next(IEnumVARIANT *self, ULONG wanted, VARIANT *out, ULONG *got)
{
    enumerator *e = (enumerator *)self;
    ULONG n = 0;

    for (; n < wanted && *e->next; n++) {
        size_t size = strcspn(e->next, " ");

        VariantInit(&out[n]);
        V_VT(&out[n]) = VT_DISPATCH;
        new_object(e->next, size, &V_DISPATCH(&out[n]));
        e->next += size + (e->next[size] == ' ');
    }
    if (got)
        *got = n;
    return n == wanted ? S_OK : S_FALSE;
}

static HRESULT STDMETHODCALLTYPE enumerator_skip(IEnumVARIANT *self, ULONG n)
{
    (void)self;
    (void)n;
    return E_NOTIMPL;
}

static HRESULT STDMETHODCALLTYPE enumerator_reset(IEnumVARIANT *self)
{
    ((enumerator *)self)->next = ((enumerator *)self)->names;
    return S_OK;
}

static HRESULT STDMETHODCALLTYPE enumerator_clone(IEnumVARIANT *self, IEnumVARIANT **out)
{
    (void)self;
    *out = NULL;
    return E_NOTIMPL;
}

static IEnumVARIANTVtbl enumerator_vtable = {
    enumerator_query, enumerator_add_ref, enumerator_release, enumerator_next, enumerator_skip, enumerator_reset, enumerator_clone,
};

static HRESULT new_enumerator(const char *names, size_t size, IUnknown **out)
{
    enumerator *e = calloc(1, sizeof *e);

    e->IEnumVARIANT_iface.lpVtbl = &enumerator_vtable;
    e->references = 1;
    e->next = e->names = calloc(1, size + 1);
    memcpy(e->names, names, size);
    *out = (IUnknown *)&e->IEnumVARIANT_iface;
    return S_OK;
}

/* The two factories are never freed. */
typedef struct {
    IClassFactory IClassFactory_iface;
    const char *kind;
} factory;

static HRESULT STDMETHODCALLTYPE factory_query(IClassFactory *self, REFIID id, void **out)
{
    *out = NULL;
    if (!IsEqualIID(id, &IID_IUnknown) && !IsEqualIID(id, &IID_IClassFactory))
        return E_NOINTERFACE;
    *out = self;
    return S_OK;
}

static ULONG STDMETHODCALLTYPE factory_reference(IClassFactory *self)
{
    (void)self;
    return 2;
}

static HRESULT STDMETHODCALLTYPE factory_create(IClassFactory *self, IUnknown *outer, REFIID id, void **out)
{
    field request[] = { str("NetFw"), str(((factory *)self)->kind), str("new"), str("get"), str("") };
    IDispatch *made;
    frame answer;
    HRESULT hr;

    *out = NULL;
    if (outer)
        return CLASS_E_NOAGGREGATION;
    if (SUCCEEDED(hr = call(5, request, &answer))) {
        new_object(answer.f[1].data, answer.f[1].size, &made);
        hr = IDispatch_QueryInterface(made, id, out);
        IDispatch_Release(made);
    }
    free(answer.memory);
    return hr;
}

static HRESULT STDMETHODCALLTYPE factory_lock(IClassFactory *self, BOOL lock)
{
    (void)self;
    (void)lock;
    return S_OK;
}

static IClassFactoryVtbl factory_vtable = { factory_query, factory_reference, factory_reference, factory_create, factory_lock };

HRESULT WINAPI DllGetClassObject(REFCLSID class, REFIID id, void **out)
{
    static factory policies = { { &factory_vtable }, "policy" }, rules = { { &factory_vtable }, "rule" };

    *out = NULL;
    if (IsEqualCLSID(class, &policy_class))
        return IClassFactory_QueryInterface(&policies.IClassFactory_iface, id, out);
    if (IsEqualCLSID(class, &rule_class))
        return IClassFactory_QueryInterface(&rules.IClassFactory_iface, id, out);
    return CLASS_E_CLASSNOTAVAILABLE;
}

HRESULT WINAPI DllCanUnloadNow(void) { return S_FALSE; }
