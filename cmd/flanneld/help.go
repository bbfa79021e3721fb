package main

import (
	"io"
	"strings"

	"flannel/pkg/flags"
)

// printHelp writes what --help shows.
func printHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`flanneld assigns this node a subnet of the pod network and makes the other nodes' subnets reachable.

Usage:
`)
	flags.Row(&b, "flanneld [flags]", "run the daemon")
	for _, c := range commands() {
		flags.Row(&b, "flanneld [flags] "+c.name, c.help)
	}
	b.WriteString(`
Flags may start with one or two dashes. Each flag can also be set by an environment variable, which
is FLANNELD_ and the name in upper case with _ for -: FLANNELD_IFACE_REGEX is --iface-regex. The
command line takes precedence. Boolean flags take =true or =false. Flags with * may be repeated.
`)
	flags.Help(&b, flagTable())
	_, err := io.WriteString(w, b.String())
	return err
}
