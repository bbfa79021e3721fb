/* The way from the DLLs to the simulated machine: frames over TCP (frame.go says what is in them), and a thread for each
 * registration that waits for events. The machine's address is in the environment, FLANNEL_HNS=127.0.0.1:port. */
#ifndef LINK_H
#define LINK_H
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FIELDS 4 /* of an answer */
#define MAX_ARGS 9   /* of a call, its name included */
#define UNAVAILABLE ((HRESULT)0x800706ba) /* RPC_S_SERVER_UNAVAILABLE */
#define BROKEN ((HRESULT)0x800706be)      /* RPC_S_CALL_FAILED */

typedef struct {
    const void *data;
    uint32_t size;
} field;

typedef struct {
    char *memory; /* of the fields; the caller frees it */
    field f[MAX_FIELDS];
} frame;

/* code is a result of Win32 in an HRESULT. */
static inline DWORD code(HRESULT result) { return result & 0xffff; }

static inline field str(const char *s)
{
    field f = { s, (uint32_t)strlen(s) };
    return f;
}

static inline field raw(const void *data, uint32_t size)
{
    field f = { data, size };
    return f;
}

static int all(SOCKET s, char *p, uint32_t n, int sending)
{
    while (n > 0) {
        int k = sending ? send(s, p, n, 0) : recv(s, p, n, 0);
        if (k <= 0)
            return -1;
        p += k;
        n -= k;
    }
    return 0;
}

/* reach connects to the machine at an address. */
static SOCKET reach(const char *address)
{
    char host[64], *port;
    struct sockaddr_in to = { .sin_family = AF_INET };
    WSADATA data;
    SOCKET s;
    BOOL yes = TRUE;

    snprintf(host, sizeof host, "%s", address);
    if (!(port = strrchr(host, ':')))
        return INVALID_SOCKET;
    *port++ = 0;
    if (WSAStartup(MAKEWORD(2, 2), &data) || (s = socket(AF_INET, SOCK_STREAM, 0)) == INVALID_SOCKET)
        return INVALID_SOCKET;
    /* A child process would keep the connection open. */
    SetHandleInformation((HANDLE)s, HANDLE_FLAG_INHERIT, 0);
    to.sin_port = htons((u_short)atoi(port));
    to.sin_addr.s_addr = inet_addr(host);
    if (connect(s, (struct sockaddr *)&to, sizeof to)) {
        closesocket(s);
        return INVALID_SOCKET;
    }
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (char *)&yes, sizeof yes);
    return s;
}

static int ask(SOCKET s, int n, const field *request, frame *answer)
{
    uint32_t size = 4, count = n, i;
    char *memory, *p;
    int err;

    for (i = 0; i < count; i++)
        size += 4 + request[i].size;
    p = memory = malloc(4 + size);
    memcpy(p, &size, 4);
    memcpy(p + 4, &count, 4);
    for (p += 8, i = 0; i < count; p += 4 + request[i].size, i++) {
        memcpy(p, &request[i].size, 4);
        memcpy(p + 4, request[i].data, request[i].size);
    }
    err = all(s, memory, 4 + size, 1);
    free(memory);
    if (err || all(s, (char *)&size, 4, 0))
        return -1;
    memory = malloc(size);
    if (all(s, memory, size, 0)) {
        free(memory);
        return -1;
    }
    answer->memory = memory;
    memcpy(&count, memory, 4);
    for (p = memory + 4, i = 0; i < count && i < MAX_FIELDS; p += 4 + answer->f[i].size, i++) {
        memcpy(&answer->f[i].size, p, 4);
        answer->f[i].data = p + 4;
    }
    return 0;
}

/* This program, as the machine knows it: by a connection that stays open until the program ends, or is told another
 * machine. */
static struct {
    CRITICAL_SECTION lock; /* DllMain makes it */
    char address[64];      /* of the machine */
    char name[64];
    SOCKET s;
} self = { .s = INVALID_SOCKET };

/* lives tells whether the machine is still there: it never sends anything on that connection but its end. */
static int lives(SOCKET s)
{
    fd_set readable = { .fd_count = 1, .fd_array = { s } };
    struct timeval none = { 0 };

    return select(0, &readable, NULL, NULL, &none) == 0;
}

/* join makes the program known to the machine at an address, and fills in what it is called there. */
static int join(const char *address, char name[64])
{
    field request[] = { str(""), str("Program") };
    frame answer = { 0 };
    int err = 0;

    EnterCriticalSection(&self.lock);
    if (self.s == INVALID_SOCKET || strcmp(self.address, address) || !lives(self.s)) {
        if (self.s != INVALID_SOCKET)
            closesocket(self.s);
        self.s = reach(address);
        err = self.s == INVALID_SOCKET || ask(self.s, 2, request, &answer);
        snprintf(self.address, sizeof self.address, "%s", address);
        snprintf(self.name, sizeof self.name, "%.*s", (int)answer.f[1].size, (const char *)answer.f[1].data);
        free(answer.memory);
        if (err && self.s != INVALID_SOCKET) {
            closesocket(self.s);
            self.s = INVALID_SOCKET;
        }
    }
    memcpy(name, self.name, sizeof self.name);
    LeaveCriticalSection(&self.lock);
    return err;
}

/* call makes one call, on a connection of its own: one that hangs delays no other. */
static HRESULT call(int n, const field *args, frame *answer)
{
    char address[64], name[64];
    field request[1 + MAX_ARGS];
    HRESULT result = BROKEN;
    SOCKET s;

    memset(answer, 0, sizeof *answer);
    if (!GetEnvironmentVariableA("FLANNEL_HNS", address, sizeof address) || join(address, name) ||
        (s = reach(address)) == INVALID_SOCKET)
        return UNAVAILABLE;
    request[0] = str(name);
    memcpy(request + 1, args, n * sizeof *args);
    if (!ask(s, 1 + n, request, answer) && answer->f[0].size == 4)
        memcpy(&result, answer->f[0].data, 4);
    closesocket(s);
    return result;
}

/* A listener is told of events, on a thread of its own, until its registration ends. */
typedef struct listener {
    struct listener *next;
    char handle[24];
    HANDLE thread;
    DWORD thread_id;
    void *callback, *context;
    void (*tell)(struct listener *, DWORD kind, const char *data);
} listener;

static listener *listeners;
static CRITICAL_SECTION listeners_lock; /* DllMain makes it */

static DWORD WINAPI listen_on(void *arg)
{
    listener *l = arg;
    field request[] = { str("Wait"), str(l->handle) };
    frame answer;

    while (call(2, request, &answer) == 0) {
        char text[128];
        snprintf(text, sizeof text, "%.*s", (int)answer.f[1].size, (const char *)answer.f[1].data);
        free(answer.memory);
        char *data = strchr(text, ' ');
        l->tell(l, strtoul(text, NULL, 10), data ? data + 1 : "");
    }
    free(answer.memory);
    return 0;
}

/* subscribe makes a listener of the handle that a call returned. */
static void *subscribe(field handle, void *callback, void *context, void (*tell)(listener *, DWORD, const char *))
{
    listener *l = calloc(1, sizeof *l);

    snprintf(l->handle, sizeof l->handle, "%.*s", (int)handle.size, (const char *)handle.data);
    l->callback = callback;
    l->context = context;
    l->tell = tell;
    l->thread = CreateThread(NULL, 0, listen_on, l, 0, &l->thread_id);
    EnterCriticalSection(&listeners_lock);
    l->next = listeners;
    listeners = l;
    LeaveCriticalSection(&listeners_lock);
    return (void *)(uintptr_t)strtoull(l->handle, NULL, 10);
}

/* unsubscribe ends a registration, and waits until its callback has returned, unless it is called from there. */
static HRESULT unsubscribe(const char *function, void *handle)
{
    listener **at, *l = NULL;
    char number[24];
    frame answer;
    field request[] = { str(function), { 0 } };
    HRESULT result;

    snprintf(number, sizeof number, "%llu", (unsigned long long)(uintptr_t)handle);
    request[1] = str(number);
    result = call(2, request, &answer);
    free(answer.memory);
    EnterCriticalSection(&listeners_lock);
    for (at = &listeners; *at; at = &(*at)->next)
        if (!strcmp((*at)->handle, number)) {
            l = *at;
            *at = l->next;
            break;
        }
    LeaveCriticalSection(&listeners_lock);
    if (l && l->thread_id != GetCurrentThreadId()) {
        WaitForSingleObject(l->thread, INFINITE);
        CloseHandle(l->thread);
        free(l);
    }
    return result;
}

BOOL WINAPI DllMain(HINSTANCE dll, DWORD reason, void *reserved)
{
    (void)dll;
    (void)reserved;
    if (reason == DLL_PROCESS_ATTACH) {
        InitializeCriticalSection(&listeners_lock);
        InitializeCriticalSection(&self.lock);
    }
    return TRUE;
}
#endif
