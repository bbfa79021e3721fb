package install

import "syscall"

// temporary are causes for which a program cannot be read or started at the moment: want of memory,
// processes or file descriptors, or another program has it open for writing.
var temporary = []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ETXTBSY}
