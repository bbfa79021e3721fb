package probe

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// processes lists all but this one. Arguments are read of those alone that matter here.
func processes() ([]process, error) {
	list, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer windows.CloseHandle(list) //nolint:errcheck // it only frees
	row := windows.ProcessEntry32{}
	row.Size = uint32(unsafe.Sizeof(row))
	var all []process
	for err = windows.Process32First(list, &row); err == nil; err = windows.Process32Next(list, &row) {
		p := process{pid: int(row.ProcessID), name: windows.UTF16ToString(row.ExeFile[:])}
		if p.pid == os.Getpid() {
			continue
		}
		if isDaemon(p.name, nil, nil) || isKubeProxy(p.name) {
			p.args, p.hidden = commandLine(row.ProcessID)
		}
		all = append(all, p)
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return all, nil
}

// maxCommandLine is Windows' own bound, in bytes.
const maxCommandLine = 1 << 16

// commandLine reads the arguments of a process where Windows keeps them, in its memory: the process environment block
// (PEB) leads to its parameters. Addresses there are numbers to us, never pointers.
func commandLine(pid uint32) ([]string, error) {
	p, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.PROCESS_VM_READ, false, pid)
	if err != nil {
		return nil, err
	}
	defer windows.CloseHandle(p) //nolint:errcheck // it only frees
	var basic [unsafe.Sizeof(windows.PROCESS_BASIC_INFORMATION{}) / unsafe.Sizeof(uintptr(0))]uintptr
	err = windows.NtQueryInformationProcess(p, windows.ProcessBasicInformation, unsafe.Pointer(&basic), uint32(unsafe.Sizeof(basic)), nil)
	if err != nil {
		return nil, err
	}
	peb := basic[unsafe.Offsetof(windows.PROCESS_BASIC_INFORMATION{}.PebBaseAddress)/unsafe.Sizeof(uintptr(0))]
	var parameters uintptr
	if err := peek(p, peb+unsafe.Offsetof(windows.PEB{}.ProcessParameters), &parameters); err != nil {
		return nil, err
	}
	var text struct { // UNICODE_STRING
		length, room uint16 // bytes
		at           uintptr
	}
	if err := peek(p, parameters+unsafe.Offsetof(windows.RTL_USER_PROCESS_PARAMETERS{}.CommandLine), &text); err != nil {
		return nil, err
	}
	var buffer [maxCommandLine / 2]uint16
	n := uintptr(text.length)
	if n > 0 {
		if err := windows.ReadProcessMemory(p, text.at, (*byte)(unsafe.Pointer(&buffer)), n, nil); err != nil {
			return nil, err
		}
	}
	return windows.DecomposeCommandLine(windows.UTF16ToString(buffer[:n/2]))
}

// peek reads a value in another process's memory.
func peek[T any](p windows.Handle, at uintptr, v *T) error {
	return windows.ReadProcessMemory(p, at, (*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v), nil)
}
