package main

import (
	"io"
	"strings"

	"flannel/pkg/flags"
)

// printHelp writes what --help shows.
func printHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`flanneld gives this node a subnet of the pod network and makes the other nodes' subnets reachable.

Usage:
`)
	flags.Row(&b, "flanneld [flags]", "run the daemon")
	for _, c := range commands() {
		flags.Row(&b, "flanneld [flags] "+c.name, c.help)
	}
	b.WriteString(`
One dash is as good as two. Every flag can also be given as an environment variable: FLANNELD_ and
its name in upper case, with _ for -; --iface-regex is FLANNELD_IFACE_REGEX. The command line wins.
Booleans take =true or =false; flags marked with * may be given more than once.
`)
	flags.Help(&b, flagTable())
	_, err := io.WriteString(w, b.String())
	return err
}
