// Command hold opens the network with the ID in its argument, registers for
// notifications, prints the result code, and keeps both open until it is
// killed.
package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

func main() {
	dll := windows.NewLazySystemDLL("computenetwork.dll")
	id, err := windows.GUIDFromString("{" + os.Args[1] + "}")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var network, registration uintptr
	var record *uint16
	callback := syscall.NewCallback(func(kind, context, status, data uintptr) uintptr { return 0 })
	result, _, _ := dll.NewProc("HcnOpenNetwork").Call(uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(&network)),
		uintptr(unsafe.Pointer(&record)))
	if result == 0 {
		result, _, _ = dll.NewProc("HcnRegisterServiceCallback").Call(callback, 0,
			uintptr(unsafe.Pointer(&registration)))
	}
	fmt.Printf("%#x\n", result)
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(1) // stdin was closed before somebody killed it
}
