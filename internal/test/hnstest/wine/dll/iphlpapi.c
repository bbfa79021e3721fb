/* iphlpapi.dll in front of Wine's own (iphlwine.dll): what shows or changes adapters, addresses and routes goes to the
 * simulated machine, structures as they lie in memory; iphlpapi.def, which `make wine` writes, passes on the rest. */
#include "link.h"
#include <iphlpapi.h>
#include <netioapi.h>

/* exchange sends a structure, and takes its new contents where the machine returns some. */
static DWORD exchange(const char *name, void *row, uint32_t size)
{
    field request[] = { str(name), raw(row, size) };
    frame answer;
    DWORD result = code(call(2, request, &answer));

    if (result == 0 && answer.f[1].size == size)
        memcpy(row, answer.f[1].data, size);
    free(answer.memory);
    return result;
}

/* convert is exchange where what comes back is another structure. */
static DWORD convert(const char *name, const void *from, uint32_t from_size, void *to, uint32_t size)
{
    field request[] = { str(name), raw(from, from_size) };
    frame answer;
    DWORD result = code(call(2, request, &answer));

    if (result == 0 && answer.f[1].size == size)
        memcpy(to, answer.f[1].data, size);
    else if (result == 0)
        result = ERROR_INVALID_PARAMETER;
    free(answer.memory);
    return result;
}

/* table returns a MIB table, which FreeMibTable frees. */
static DWORD table(const char *name, ULONG argument, void **out)
{
    field request[] = { str(name), raw(&argument, sizeof argument) };
    frame answer;
    DWORD result = code(call(2, request, &answer));

    if (result == 0) {
        *out = HeapAlloc(GetProcessHeap(), 0, answer.f[1].size);
        memcpy(*out, answer.f[1].data, answer.f[1].size);
    }
    free(answer.memory);
    return result;
}

VOID WINAPI FreeMibTable(PVOID memory) { HeapFree(GetProcessHeap(), 0, memory); }

ULONG WINAPI GetAdaptersAddresses(ULONG family, ULONG flags, PVOID reserved, PIP_ADAPTER_ADDRESSES out, PULONG size)
{
    field request[] = { str("GetAdaptersAddresses"), raw(&flags, sizeof flags) };
    frame answer;
    ULONG i, result = code(call(2, request, &answer)), have = *size;
    const uint32_t *pointers = answer.f[2].data;

    (void)family;
    (void)reserved;
    if (result == 0) {
        *size = answer.f[1].size;
        if (!out || have < *size)
            result = ERROR_BUFFER_OVERFLOW;
    }
    if (result == 0) {
        memcpy(out, answer.f[1].data, *size);
        for (i = 0; i < answer.f[2].size / 4; i++)
            *(uintptr_t *)((char *)out + pointers[i]) += (uintptr_t)out;
    }
    free(answer.memory);
    return result;
}

DWORD WINAPI GetIfTable2Ex(MIB_IF_TABLE_LEVEL level, PMIB_IF_TABLE2 *out) { return table("GetIfTable2Ex", level, (void **)out); }
DWORD WINAPI GetIfTable2(PMIB_IF_TABLE2 *out) { return table("GetIfTable2Ex", 0, (void **)out); }
DWORD WINAPI GetIpForwardTable2(ADDRESS_FAMILY family, PMIB_IPFORWARD_TABLE2 *out) { return table("GetIpForwardTable2", family, (void **)out); }

VOID WINAPI InitializeIpForwardEntry(PMIB_IPFORWARD_ROW2 row)
{
    memset(row, 0, sizeof *row);
    row->ValidLifetime = row->PreferredLifetime = row->Metric = 0xffffffff;
    row->Loopback = row->AutoconfigureAddress = row->Publish = row->Immortal = TRUE;
    row->Protocol = MIB_IPPROTO_NETMGMT;
}

VOID WINAPI InitializeUnicastIpAddressEntry(PMIB_UNICASTIPADDRESS_ROW row)
{
    memset(row, 0, sizeof *row);
    row->PrefixOrigin = IpPrefixOriginUnchanged;
    row->SuffixOrigin = IpSuffixOriginUnchanged;
    row->ValidLifetime = row->PreferredLifetime = 0xffffffff;
    row->OnLinkPrefixLength = 255;
}

VOID WINAPI InitializeIpInterfaceEntry(PMIB_IPINTERFACE_ROW row) { memset(row, 0, sizeof *row); }

DWORD WINAPI CreateIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row) { return exchange("CreateIpForwardEntry2", (void *)row, sizeof *row); }
DWORD WINAPI SetIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row) { return exchange("SetIpForwardEntry2", (void *)row, sizeof *row); }
DWORD WINAPI DeleteIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row) { return exchange("DeleteIpForwardEntry2", (void *)row, sizeof *row); }
DWORD WINAPI GetIpInterfaceEntry(PMIB_IPINTERFACE_ROW row) { return exchange("GetIpInterfaceEntry", row, sizeof *row); }
DWORD WINAPI SetIpInterfaceEntry(PMIB_IPINTERFACE_ROW row) { return exchange("SetIpInterfaceEntry", row, sizeof *row); }
DWORD WINAPI CreateUnicastIpAddressEntry(const MIB_UNICASTIPADDRESS_ROW *row) { return exchange("CreateUnicastIpAddressEntry", (void *)row, sizeof *row); }

DWORD WINAPI DeleteUnicastIpAddressEntry(const MIB_UNICASTIPADDRESS_ROW *row) { return exchange("DeleteUnicastIpAddressEntry", (void *)row, sizeof *row); }

DWORD WINAPI GetBestRoute2(NET_LUID *luid, NET_IFINDEX index, const SOCKADDR_INET *source, const SOCKADDR_INET *destination,
                           ULONG sort, PMIB_IPFORWARD_ROW2 route, SOCKADDR_INET *best)
{
    struct {
        MIB_IPFORWARD_ROW2 route;
        SOCKADDR_INET source;
    } way;
    DWORD result = convert("GetBestRoute2", destination, sizeof *destination, &way, offsetof(__typeof__(way), source) + sizeof way.source);

    (void)luid;
    (void)index;
    (void)source;
    (void)sort;
    if (result == 0) {
        *route = way.route;
        *best = way.source;
    }
    return result;
}

DWORD WINAPI ConvertInterfaceIndexToLuid(NET_IFINDEX index, PNET_LUID luid) { return convert("ConvertInterfaceIndexToLuid", &index, sizeof index, luid, sizeof *luid); }
DWORD WINAPI ConvertInterfaceLuidToIndex(const NET_LUID *luid, PNET_IFINDEX index) { return convert("ConvertInterfaceLuidToIndex", luid, sizeof *luid, index, sizeof *index); }
DWORD WINAPI ConvertInterfaceLuidToGuid(const NET_LUID *luid, GUID *guid) { return convert("ConvertInterfaceLuidToGuid", luid, sizeof *luid, guid, sizeof *guid); }
DWORD WINAPI ConvertInterfaceGuidToLuid(const GUID *guid, PNET_LUID luid) { return convert("ConvertInterfaceGuidToLuid", guid, sizeof *guid, luid, sizeof *luid); }

/* DNS_INTERFACE_SETTINGS, which mingw's headers lack. */
typedef struct {
    ULONG version;
    ULONG64 flags;
    WCHAR *domain, *servers, *search;
    ULONG registration, adapter_name, llmnr, query_adapter_name;
    WCHAR *profile;
} dns_settings;

DWORD WINAPI SetInterfaceDnsSettings(GUID guid, const dns_settings *settings)
{
    char servers[1024] = "";
    field request[] = { str("SetInterfaceDnsSettings"), raw(&guid, sizeof guid), raw(&settings->flags, sizeof settings->flags), { 0 },
                        raw(&settings->registration, sizeof settings->registration) };
    frame answer;
    DWORD result;

    if (settings->flags & 2 && settings->servers)
        WideCharToMultiByte(CP_UTF8, 0, settings->servers, -1, servers, sizeof servers, NULL, NULL);
    request[3] = str(servers);
    result = code(call(5, request, &answer));
    free(answer.memory);
    return result;
}

/* Callbacks get an empty row: who wants to know what changed looks for himself. */
typedef void(WINAPI *change)(void *context, void *row, MIB_NOTIFICATION_TYPE kind);

static void tell(listener *l, DWORD kind, const char *data)
{
    MIB_IPINTERFACE_ROW row = { 0 }; /* the largest of the three */

    (void)kind;
    (void)data;
    ((change)l->callback)(l->context, &row, MibParameterNotification);
}

static DWORD notify(const char *name, void *callback, void *context, HANDLE *handle)
{
    field request[] = { str(name), str("") };
    frame answer;
    DWORD result = code(call(2, request, &answer));

    if (result == 0)
        *handle = subscribe(answer.f[1], callback, context, tell);
    free(answer.memory);
    return result;
}

#define NOTIFY(F, C)                                                                                        \
    DWORD WINAPI F(ADDRESS_FAMILY family, C callback, PVOID context, BOOLEAN initial, HANDLE *handle)       \
    { (void)family; (void)initial; return notify(#F, callback, context, handle); }

NOTIFY(NotifyIpInterfaceChange, PIPINTERFACE_CHANGE_CALLBACK)
NOTIFY(NotifyUnicastIpAddressChange, PUNICAST_IPADDRESS_CHANGE_CALLBACK)
NOTIFY(NotifyRouteChange2, PIPFORWARD_CHANGE_CALLBACK)

DWORD WINAPI CancelMibChangeNotify2(HANDLE handle) { return code(unsubscribe("CancelMibChangeNotify2", handle)); }
