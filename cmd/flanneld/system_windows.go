package main

import (
	"path/filepath"

	"golang.org/x/sys/windows/registry"
)

// machineID is that of this installation of the operating system, "" where there is none.
func machineID() string {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Cryptography`, registry.QUERY_VALUE|registry.WOW64_64KEY)
	if err != nil {
		return ""
	}
	defer key.Close() //nolint:errcheck // it only frees
	id, _, _ := key.GetStringValue("MachineGuid")
	return id
}

// systemPath is where a file of the system is, given as on Linux: on C:, where the CNI plugin finds it, whatever the
// drive from which flanneld was started.
func systemPath(path string) string { return "C:" + filepath.FromSlash(path) }
