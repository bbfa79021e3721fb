// Command hold opens the network that its argument names, registers for notifications, says so, and keeps both until it
// is killed.
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
	told := syscall.NewCallback(func(kind, context, status, data uintptr) uintptr { return 0 })
	result, _, _ := dll.NewProc("HcnOpenNetwork").Call(uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(&network)), uintptr(unsafe.Pointer(&record)))
	if result == 0 {
		result, _, _ = dll.NewProc("HcnRegisterServiceCallback").Call(told, 0, uintptr(unsafe.Pointer(&registration)))
	}
	fmt.Printf("%#x\n", result)
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(1) // nobody killed it
}
