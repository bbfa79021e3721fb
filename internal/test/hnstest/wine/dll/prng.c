/* bcryptprimitives.dll: Go programs (since 1.22) call ProcessPrng when they start, which Wine 8 lacks. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom, of advapi32.dll */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n)
{
    while (n > 0) {
        ULONG some = n < 1 << 20 ? (ULONG)n : 1 << 20;
        if (!SystemFunction036(p, some))
            return FALSE;
        p += some;
        n -= some;
    }
    return TRUE;
}
