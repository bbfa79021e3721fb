/* netprofm.dll: the part of the Network List Manager that tells and sets the category of an adapter's network, of which
 * each adapter of the simulated machine has its own. A call is a call NetList of the machine, with the name of a method,
 * the adapter's GUID and an argument; netlist.go has the methods. */
#include "link.h"
#include <netlistmgr.h>

/* An object is the manager, an enumerator, a connection or a network, by its vtable. Its GUIDs are those of adapters,
 * separated by spaces; a connection and a network have one. */
typedef struct {
    const void *vtable;
    LONG references;
    char *guids, *next;
} object;

static const INetworkListManagerVtbl manager_vtable;
static const IEnumNetworkConnectionsVtbl enumerator_vtable;
static const INetworkConnectionVtbl connection_vtable;
static const INetworkVtbl network_vtable;

static void *new_object(const void *vtable, const char *guids, size_t size)
{
    object *o = calloc(1, sizeof *o);

    o->vtable = vtable;
    o->references = 1;
    o->next = o->guids = calloc(1, size + 1);
    memcpy(o->guids, guids, size);
    return o;
}

static HRESULT ask_list(const char *method, const char *guid, const char *argument, frame *answer)
{
    field request[] = { str("NetList"), str(method), str(guid), str(argument) };

    return call(4, request, answer);
}

/* Methods of all objects. */

static HRESULT STDMETHODCALLTYPE query(void *self, REFIID id, void **out)
{
    object *o = self;
    const IID *own = o->vtable == &manager_vtable ? &IID_INetworkListManager :
                     o->vtable == &enumerator_vtable ? &IID_IEnumNetworkConnections :
                     o->vtable == &connection_vtable ? &IID_INetworkConnection : &IID_INetwork;

    *out = NULL;
    if (!IsEqualIID(id, &IID_IUnknown) && !IsEqualIID(id, own))
        return E_NOINTERFACE;
    InterlockedIncrement(&o->references);
    *out = o;
    return S_OK;
}

static ULONG STDMETHODCALLTYPE add_ref(void *self) { return InterlockedIncrement(&((object *)self)->references); }

static ULONG STDMETHODCALLTYPE release(void *self)
{
    object *o = self;
    ULONG left = InterlockedDecrement(&o->references);

    if (!left) {
        free(o->guids);
        free(o);
    }
    return left;
}

static HRESULT STDMETHODCALLTYPE get_connections(INetworkListManager *self, IEnumNetworkConnections **out)
{
    frame answer;
    HRESULT hr = ask_list("connections", "", "", &answer);

    (void)self;
    *out = NULL;
    if (SUCCEEDED(hr))
        *out = new_object(&enumerator_vtable, answer.f[1].data, answer.f[1].size);
    free(answer.memory);
    return hr;
}

static HRESULT STDMETHODCALLTYPE next_connection(IEnumNetworkConnections *self, ULONG wanted, INetworkConnection **out, ULONG *got)
{
    object *e = (object *)self;
    ULONG n = 0;

    for (; n < wanted && *e->next; n++) {
        size_t size = strcspn(e->next, " ");

        out[n] = new_object(&connection_vtable, e->next, size);
        e->next += size + (e->next[size] == ' ');
    }
    if (got)
        *got = n;
    return n == wanted ? S_OK : S_FALSE;
}

static HRESULT STDMETHODCALLTYPE get_adapter(INetworkConnection *self, GUID *out)
{
    WCHAR text[39];

    if (_snwprintf(text, 39, L"{%hs}", ((object *)self)->guids) != 38)
        return E_FAIL;
    return CLSIDFromString(text, out);
}

static HRESULT STDMETHODCALLTYPE get_network(INetworkConnection *self, INetwork **out)
{
    const char *guid = ((object *)self)->guids;

    *out = new_object(&network_vtable, guid, strlen(guid));
    return S_OK;
}

static HRESULT STDMETHODCALLTYPE get_category(INetwork *self, NLM_NETWORK_CATEGORY *out)
{
    frame answer;
    HRESULT hr = ask_list("category", ((object *)self)->guids, "", &answer);

    if (SUCCEEDED(hr))
        *out = *(const char *)answer.f[1].data - '0';
    free(answer.memory);
    return hr;
}

static HRESULT STDMETHODCALLTYPE set_category(INetwork *self, NLM_NETWORK_CATEGORY category)
{
    char argument[] = { (char)('0' + category), 0 };
    frame answer;
    HRESULT hr = ask_list("set", ((object *)self)->guids, argument, &answer);

    free(answer.memory);
    return hr;
}

/* The methods that are missing here are not called. */
#define UNKNOWN .QueryInterface = (void *)query, .AddRef = (void *)add_ref, .Release = (void *)release
static const INetworkListManagerVtbl manager_vtable = { UNKNOWN, .GetNetworkConnections = get_connections };
static const IEnumNetworkConnectionsVtbl enumerator_vtable = { UNKNOWN, .Next = next_connection };
static const INetworkConnectionVtbl connection_vtable = { UNKNOWN, .GetNetwork = get_network, .GetAdapterId = get_adapter };
static const INetworkVtbl network_vtable = { UNKNOWN, .GetCategory = get_category, .SetCategory = set_category };

/* The factory, which is never freed. */

static HRESULT STDMETHODCALLTYPE factory_query(IClassFactory *self, REFIID id, void **out)
{
    *out = IsEqualIID(id, &IID_IUnknown) || IsEqualIID(id, &IID_IClassFactory) ? self : NULL;
    return *out ? S_OK : E_NOINTERFACE;
}

static ULONG STDMETHODCALLTYPE factory_reference(IClassFactory *self)
{
    (void)self;
    return 2;
}

static HRESULT STDMETHODCALLTYPE factory_create(IClassFactory *self, IUnknown *outer, REFIID id, void **out)
{
    void *made = new_object(&manager_vtable, "", 0);
    HRESULT hr = outer ? CLASS_E_NOAGGREGATION : query(made, id, out);

    (void)self;
    release(made);
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
    static IClassFactory managers = { &factory_vtable };

    *out = NULL;
    return IsEqualCLSID(class, &CLSID_NetworkListManager) ? factory_query(&managers, id, out) : CLASS_E_CLASSNOTAVAILABLE;
}

HRESULT WINAPI DllCanUnloadNow(void) { return S_FALSE; }
