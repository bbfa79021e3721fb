package install

import "golang.org/x/sys/windows"

// temporary are causes for which a program cannot be read or started at the moment: want of memory,
// or another program has it open.
var temporary = []error{
	windows.ERROR_NOT_ENOUGH_MEMORY, windows.ERROR_COMMITMENT_LIMIT, windows.ERROR_NO_SYSTEM_RESOURCES,
	windows.ERROR_SHARING_VIOLATION,
}
