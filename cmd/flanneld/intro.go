package main

import (
	"fmt"
	"strings"

	"flannel/pkg/underlay"
)

// introduction returns what a daemon is about to do, for a person who started it in a
// terminal without any flag or variable; else "". Without it, the daemon would wait
// for a store that the person may never have heard of.
func introduction(o options, p process) string {
	if !p.terminal || len(o.given) > 0 {
		return ""
	}
	iface := "none can be chosen yet (--iface)"
	if snapshot, err := readUnderlay(o.Underlay); err == nil {
		if link, err := chooseAny(snapshot, o.Underlay); err == nil {
			iface = fmt.Sprintf("%s, that of the default route (--iface)", link.Name)
		}
	}
	return fmt.Sprintf(`flanneld starts with its defaults, because no flag is given (flanneld help lists flags and commands):
  store      etcd at %s, below %s (--etcd-endpoints, --etcd-prefix);
             the Kubernetes API with --kube-subnet-mgr
  interface  %s
  result     %s (--subnet-file)
Ctrl-C ends it, and leaves the network in place.
`, strings.Join(o.Etcd.Endpoints, ","), o.Etcd.Prefix, iface, o.SubnetFile)
}

// chooseAny chooses the interface for IPv4, or for IPv6 on a machine without IPv4: which
// of them the network has is not known yet.
func chooseAny(s underlay.Snapshot, o underlay.Options) (underlay.Link, error) {
	link, err := underlay.Choose(s, o, true, false)
	if err != nil {
		link, err = underlay.Choose(s, o, false, true)
	}
	return link, err
}
