// Package conformance runs Kubernetes' own end-to-end tests of the pod network, by
// its program e2e.test, on a cluster of three nodes on one machine.
//
// Run prepares the cluster (prepare.go), starts e2e.test by ginkgo in several
// processes (run.go), reads the results that e2e.test wrote as JUnit, and compares
// them with the list of expected failures (report.go, expected.go). It also checks
// that flanneld's guard has dropped nothing (guard.go).
package conformance

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"flannel/cmd/flannel-lab/cluster"
)

// Options are the command-line options. Parse checks the backend, the set and the number of
// processes; a wrong guard, proxy mode or focus is only found by the program that gets it.
type Options struct {
	cluster  cluster.Options
	backend  string // a type, or a JSON object
	nftables bool   // EnableNFTables of the configuration
	guard    string // its Guard; "": it has none
	set      string // a key of sets
	focus    string // regular expression for the part of a name behind the match of the set's; "": any
	procs    int    // processes that run tests at the same time
	out      string // directory with a directory of results for each name(); set by Run if ""
}

// sets are the sets of tests: each selects them by a regular expression of their
// whole names.
var sets = map[string]string{
	"conformance": `\[sig-network\].*\[Conformance\]`,
	"network":     `\[sig-network\]`,
}

// left matches the names of tests that no set has. They need what the cluster does not
// have, such as a cloud, SCTP in the kernel or (CLOSE_WAIT) limits of connection tracking,
// change the whole cluster, or take long ([Slow], mostly tests of load balancers). The table
// in Documentation/conformance.md has the reason of each word.
const left = `LoadBalancer|\[Serial\]|\[Disruptive\]|\[Slow\]|SCTP|CLOSE_WAIT|Provider:GCE|Feature:`

// skip returns the regular expression of the names of tests that do not run. Of the tests
// that need a feature (Feature:NAME), only those of Feature:IPv6DualStack can run, and only
// if the cluster has both address families.
func (o Options) skip() string {
	if o.cluster.Dual {
		return left + `([A-HJ-Z]|I[^P])` // a name that does not begin with IP
	}
	return left
}

func (o *Options) flags() *flag.FlagSet {
	f := flag.NewFlagSet("flannel-lab conformance", flag.ContinueOnError)
	f.StringVar(&o.backend, "backend", "vxlan", "the configuration's Backend: a `type`, or a JSON object")
	f.BoolVar(&o.nftables, "enable-nftables", false, "set EnableNFTables in the configuration")
	f.StringVar(&o.guard, "guard", "", "`mode` of the guard, such as enforce (default: as without the key Guard)")
	f.BoolVar(&o.cluster.Dual, "ipv6", false, "use IPv6 in addition to IPv4")
	f.StringVar(&o.cluster.ProxyMode, "proxy-mode", "iptables", "`mode` of kube-proxy: iptables or nftables")
	f.StringVar(&o.set, "set", "conformance", "the tests: conformance, or network for all that this cluster can run")
	f.StringVar(&o.focus, "focus", "", "run only tests of the set whose names match this `expression`")
	f.IntVar(&o.procs, "procs", 8, "`number` of processes that run tests") // the times in conformance.md are with 8
	f.StringVar(&o.out, "out", "", "`directory` of the results (default: bin/conformance)")
	f.StringVar(&o.cluster.BinDir, "bin", "", "`directory` of the programs (default: bin)")
	return f
}

// Parse parses the command line. After -h it writes the options to w.
func Parse(w io.Writer, args []string) (o Options, err error) {
	f := o.flags()
	f.SetOutput(io.Discard)
	o.cluster.Nodes = 3 // several tests need as many; no option sets it
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(w)
			f.PrintDefaults()
		}
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("conformance: unexpected argument %q", f.Arg(0))
	}
	if _, known := sets[o.set]; !known {
		return o, fmt.Errorf("conformance: unknown set %q", o.set)
	}
	if o.procs < 1 {
		return o, fmt.Errorf("conformance: --procs %d: at least 1 is needed", o.procs)
	}
	_, err = o.backendObject()
	return o, err
}

// backendType returns the Type of the configuration's Backend.
func (o Options) backendType() string {
	b, err := o.backendObject()
	if err != nil {
		return o.backend // never after Parse, which has checked it
	}
	t, _ := b["Type"].(string)
	return t
}

// name describes the configuration, as the name of a directory. Other options of the backend
// than its type are not in the name, nor is what the focus is: Run replaces the results of the
// last run with the same name.
func (o Options) name() string {
	words := []string{o.set, o.backendType(), o.cluster.ProxyMode}
	if o.nftables {
		words = append(words, "EnableNFTables")
	}
	if o.guard != "" {
		words = append(words, "guard", o.guard)
	}
	if o.cluster.Dual {
		words = append(words, "dual-stack")
	}
	if o.focus != "" {
		words = append(words, "focus")
	}
	return strings.Join(words, "-")
}
