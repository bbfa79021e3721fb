package service

import "io"

// Component is kubelet, kube-proxy or flanneld of a Windows node.
type Component struct {
	Name    string // of its service, its log and its record
	Program string
	Args    []string
	Env     []string // NAME=VALUE, in addition to those of this process; a service does not get them
	Manual  bool     // a service of it does not start with the system, since its arguments may be outdated then
	// Other returns an error if the component runs already, but Components did not
	// start it. nil: it does if a process has the program's name.
	Other func() error
}

// Components starts and stops the components of a node, for the commands node start,
// node stop and node reset, whose only goroutine calls the methods. It recognizes what it
// started:
//
//	runs as     recognized by
//	a process   a record (BaseDir\run\<name>.json) of its ID and of the time it started
//	a service   the description, mark
//
// A service of others is only started. A process of others is an error.
type Components struct {
	BaseDir string
	LogDir  string    // for the output of processes and services
	Out     io.Writer // gets a line for each change
}
