// Package machine builds machines from namespaces, and runs programs in them.
// All of it is below one process in a PID namespace of its own (see Init), so
// everything ends when that process ends. The package does not know flannel.
package machine
