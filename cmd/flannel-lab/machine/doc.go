// Package machine makes machines of network namespaces, and runs programs in them: below one process in a PID namespace of
// its own (see Init), with whose end everything ends. It knows nothing of flannel.
package machine
