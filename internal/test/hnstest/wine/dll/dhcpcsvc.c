/* dhcpcsvc.dll: the DHCP client of the simulated machine. It reads the registry when it is notified, as that of Windows. */
#include "link.h"

enum { names = 7, largest = 4096 };

DWORD WINAPI DhcpNotifyConfigChange(WCHAR *server, WCHAR *adapter, BOOL is_new, DWORD index, DWORD address, DWORD mask, int action)
{
    static const WCHAR *const value[names] = { L"EnableDHCP", L"IPAddress", L"SubnetMask", L"DefaultGateway",
                                               L"DefaultGatewayMetric", L"InterfaceMetric", L"MTU" };
    static const WCHAR interfaces[] = L"SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces\\";
    static char data[names][largest];
    WCHAR path[256];
    char guid[64] = "";
    field request[2 + names] = { str("DhcpNotifyConfigChange"), { 0 } };
    frame answer;
    DWORD result;
    int i;

    (void)server;
    (void)is_new;
    (void)index;
    (void)address;
    (void)mask;
    (void)action;
    if (lstrlenW(adapter) >= (int)sizeof guid)
        return ERROR_INVALID_PARAMETER;
    lstrcpyW(path, interfaces);
    lstrcatW(path, adapter);
    WideCharToMultiByte(CP_UTF8, 0, adapter, -1, guid, sizeof guid, NULL, NULL);
    request[1] = str(guid);
    for (i = 0; i < names; i++) {
        DWORD size = largest;

        if (RegGetValueW(HKEY_LOCAL_MACHINE, path, value[i], RRF_RT_ANY, NULL, data[i], &size) != ERROR_SUCCESS)
            size = 0;
        request[2 + i] = raw(data[i], size);
    }
    result = code(call(2 + names, request, &answer));
    free(answer.memory);
    return result;
}
