package main

import (
	"io"
	"os"

	"golang.org/x/sys/windows"
)

// enableSequences lets a console interpret control sequences, which it does not
// by default.
func enableSequences(w io.Writer) (restore func(), err error) {
	f, ok := w.(*os.File)
	if !ok {
		return func() {}, nil
	}
	console := windows.Handle(f.Fd())
	var mode uint32
	if err := windows.GetConsoleMode(console, &mode); err != nil {
		return nil, os.NewSyscallError("GetConsoleMode", err)
	}
	if err := windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING); err != nil {
		return nil, os.NewSyscallError("SetConsoleMode", err)
	}
	return func() { _ = windows.SetConsoleMode(console, mode) }, nil
}
