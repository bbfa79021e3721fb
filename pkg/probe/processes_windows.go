package probe

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// processes returns all processes but this one. It reads the arguments of
// flanneld and kube-proxy only.
func processes() ([]process, error) {
	list, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer windows.CloseHandle(list) //nolint:errcheck // nothing was written
	entry := windows.ProcessEntry32{}
	entry.Size = uint32(unsafe.Sizeof(entry))
	var all []process
	for err = windows.Process32First(list, &entry); err == nil; err = windows.Process32Next(list, &entry) {
		p := process{pid: int(entry.ProcessID), name: windows.UTF16ToString(entry.ExeFile[:])}
		if p.pid == os.Getpid() || entry.Threads == 0 { // it has ended, and somebody holds a handle of it
			continue
		}
		// Opening a process needs rights and time, so only these are opened. With no
		// commands, isDaemon goes by the name alone, as the arguments are not known.
		if p.isDaemon(nil) || isKubeProxy(p.name) {
			p.args, p.argsErr = commandLine(entry.ProcessID)
			if errors.Is(p.argsErr, windows.ERROR_INVALID_PARAMETER) {
				continue // it has ended
			}
		}
		all = append(all, p)
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return all, nil
}

// maxCommandLine is the limit of Windows for the length of a command line in
// bytes.
const maxCommandLine = 1 << 16

// commandLine reads the arguments of a process from its memory: the process
// environment block (PEB) has the address of the process parameters, and these
// have the address of the command line. Addresses in the other process are of
// type uintptr.
func commandLine(pid uint32) ([]string, error) {
	p, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.PROCESS_VM_READ, false, pid)
	if err != nil {
		return nil, err
	}
	defer windows.CloseHandle(p) //nolint:errcheck // nothing was written
	// The struct of x/sys has pointers, but these addresses are not of this process:
	// the garbage collector must not see them as pointers. An array of words has the
	// same layout.
	var basic [unsafe.Sizeof(windows.PROCESS_BASIC_INFORMATION{}) / unsafe.Sizeof(uintptr(0))]uintptr
	err = windows.NtQueryInformationProcess(p, windows.ProcessBasicInformation,
		unsafe.Pointer(&basic), uint32(unsafe.Sizeof(basic)), nil)
	if err != nil {
		return nil, err
	}
	// From here on, offsets in structs of that process: PEB, its parameters, the text.
	peb := basic[unsafe.Offsetof(windows.PROCESS_BASIC_INFORMATION{}.PebBaseAddress)/unsafe.Sizeof(uintptr(0))]
	var parameters uintptr
	if err := peek(p, peb+unsafe.Offsetof(windows.PEB{}.ProcessParameters), &parameters); err != nil {
		return nil, err
	}
	var text struct { // UNICODE_STRING
		length, maxLength uint16 // bytes
		address           uintptr
	}
	at := parameters + unsafe.Offsetof(windows.RTL_USER_PROCESS_PARAMETERS{}.CommandLine)
	if err := peek(p, at, &text); err != nil {
		return nil, err
	}
	var buffer [maxCommandLine / 2]uint16 // any length that fits into text.length
	n := uintptr(text.length)
	if n > 0 {
		if err := windows.ReadProcessMemory(p, text.address, (*byte)(unsafe.Pointer(&buffer)), n, nil); err != nil {
			return nil, err
		}
	}
	return windows.DecomposeCommandLine(windows.UTF16ToString(buffer[:n/2]))
}

// peek reads a value from another process's memory.
func peek[T any](p windows.Handle, address uintptr, v *T) error {
	return windows.ReadProcessMemory(p, address, (*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v), nil)
}
