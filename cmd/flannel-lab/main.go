// Command flannel-lab runs several nodes on one machine: to show what flannel
// does, to experiment with it, and (with its package lab) to test it. It does
// not change the host's own network.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"flannel/cmd/flannel-lab/bench"
	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/conformance"
	"flannel/cmd/flannel-lab/demo"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

const usage = `flannel-lab: several flannel nodes on one machine. The machine's own network is not changed.

  flannel-lab demo [options]            show what flannel does, step by step
  flannel-lab up [options]              start a lab in the background
  flannel-lab status                    show its nodes, leases and pods
  flannel-lab exec NODE|POD|infra [-- COMMAND…]   run a command there (default: a shell)
  flannel-lab pod add NODE NAME         create a pod with the CNI plugins
  flannel-lab pod del NAME
  flannel-lab pod list
  flannel-lab flanneld start|stop|kill|log NODE
  flannel-lab down                      end the lab and remove everything of it
  flannel-lab cluster …                 a Kubernetes cluster with kubelet and containerd: see flannel-lab cluster help
  flannel-lab conformance [options]     run Kubernetes' end-to-end tests of the network on a cluster (options: conformance -h)
  flannel-lab bench [options]           measure the costs of a daemon at scale, compared to the kernel alone (options: bench -h)

Options of demo and up:
`

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit status: 0, 1 after an error, 2 for a wrong command line, or
// that of the command of exec.
//
// lab.Continue comes first: this program also starts itself inside of namespaces,
// where it does something else and does not return. lab.Init moves a process that
// holds a lab into namespaces of its own.
func run(args []string) int {
	lab.Continue()
	cluster.Continue()
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	if command == "demo" || command == "serve" || command == "bench" || command == "conformance" || command == "cluster" && inNamespaces(args) {
		lab.Init() // returns in the new namespaces only
	}
	ctx, stop := signal.NotifyContext(context.Background(), machine.Ending()...)
	defer stop()
	code, err := dispatch(ctx, command, args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flannel-lab:", err)
		return max(code, 1)
	}
	return code
}

// dispatch runs a command and returns the exit status, as run does; with an error, run
// makes 1 of 0. status, pod, flanneld, exec and down ask the lab that up has started, by its
// socket.
func dispatch(ctx context.Context, command string, args []string) (int, error) {
	switch command {
	case "demo", "up", "serve": // serve is the background process that up starts, with the same arguments
		o, err := parseOptions(command, args) // up only checks them
		if err != nil {
			return 2, err
		}
		switch command {
		case "demo":
			return 0, demonstrate(ctx, o)
		case "up":
			return 0, theLab().up(ctx, args)
		}
		return 0, serve(ctx, o)
	case "bench":
		o, err := bench.Parse(args)
		if err != nil {
			return 2, err
		}
		return 0, bench.Run(ctx, os.Stdout, o)
	case "conformance":
		o, err := conformance.Parse(os.Stdout, args)
		if err != nil {
			return 2, err
		}
		return 0, conformance.Run(ctx, os.Stdout, o)
	case "cluster":
		return clusterCommand(ctx, args)
	case "status", "pod", "flanneld":
		return 0, theLab().ask(append([]string{command}, args...))
	case "exec":
		return theLab().execute(args)
	case "down":
		return 0, theLab().end()
	case "", "help", "-h", "-help", "--help":
		fmt.Print(usage)
		flags := new(options).flags("")
		flags.SetOutput(os.Stdout)
		flags.PrintDefaults()
		return 0, nil
	}
	return 2, fmt.Errorf("unknown command %q; see flannel-lab help", command)
}

// demonstrate runs the demo, and records it with --record.
func demonstrate(ctx context.Context, o options) error {
	out := demo.Output{Terminal: os.Stdout}
	if o.record == "" {
		return runDemo(ctx, out, o)
	}
	f, err := os.Create(o.record)
	if err != nil {
		return err
	}
	record := bufio.NewWriter(f) // keeps the first error for Flush
	out.Record = record
	err = runDemo(ctx, out, o)
	return errors.Join(err, record.Flush(), f.Close())
}

// runDemo runs the demo in a lab, or with --cluster in a cluster.
func runDemo(ctx context.Context, out demo.Output, o options) error {
	if o.cluster {
		return demo.RunCluster(ctx, out, cluster.Options{Nodes: 2, Dual: o.dual, BinDir: o.lab.BinDir})
	}
	return demo.Run(ctx, out, o.lab, o.backend, o.probes)
}

// options are the command-line options of demo and up. up passes its arguments to
// serve, which parses them again.
type options struct {
	lab     lab.Options
	backend string // a JSON object after parseOptions
	cluster bool   // for demo: a cluster with kubelet and containerd
	dual    bool   // both address families; it becomes lab.Family
	probes  bool   // of the demo alone
	record  string // of the demo alone: a file
}

// flags returns a flag set that sets o when it parses.
func (o *options) flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet("flannel-lab "+name, flag.ContinueOnError)
	f.IntVar(&o.lab.Nodes, "nodes", 3, "number of `nodes`")
	f.IntVar(&o.lab.Windows, "windows", 0, "number of Windows `nodes`, the last ones: real programs in Wine, with a simulated HNS")
	f.StringVar(&o.backend, "backend", "vxlan", "the configuration's Backend: a `type`, or a JSON object such as '{\"Type\":\"vxlan\",\"DirectRouting\":true}'")
	f.BoolVar(&o.dual, "ipv6", false, "use IPv6 in addition to IPv4")
	f.BoolVar(&o.probes, "probes", false, "demo: also show what flanneld's probes find, which takes about 20 seconds more")
	f.StringVar(&o.record, "record", "", "demo only: also write what it prints to this `file`, as an asciicast")
	f.IntVar(&o.lab.Subnets, "subnets", 1, "number of underlay `networks` (1 or 2), joined by a router")
	f.BoolVar(&o.lab.Kube, "kube", false, "store leases in Kubernetes, with a real API server, instead of etcd")
	f.BoolVar(&o.cluster, "cluster", false, "demo only: a Kubernetes cluster of two nodes with kubelet, containerd and kube-proxy; of the other options, only --ipv6 and --record apply")
	f.StringVar(&o.lab.Flanneld, "flanneld", "", "any flannel-compatible `binary` (default: bin/flanneld)")
	f.StringVar(&o.lab.Etcd, "etcd", "", "any etcd `binary` (default: bin/etcd)")
	f.StringVar(&o.lab.BinDir, "bin", "", "`directory` of flanneld, etcd and cni/ (default: bin)")
	return f
}

// parseOptions parses and checks the options. With Windows nodes, a backend "vxlan"
// gets VNI and port; one that is given as JSON stays as it is.
func parseOptions(command string, args []string) (options, error) {
	var o options
	f := o.flags(command)
	f.SetOutput(io.Discard) // main prints the error
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(os.Stdout)
		f.PrintDefaults()
		return o, err
	}
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("%s: unexpected argument %q", command, f.Arg(0))
	}
	if err == nil && o.lab.Nodes < 2 {
		err = fmt.Errorf("--nodes %d: at least 2 are needed", o.lab.Nodes)
	}
	if err == nil && o.lab.Windows > 0 && o.lab.Nodes-o.lab.Windows < 2 {
		err = fmt.Errorf("--windows %d with --nodes %d: at least two Linux nodes are needed", o.lab.Windows,
			o.lab.Nodes)
	}
	if o.lab.Windows > 0 && o.backend == "vxlan" {
		o.backend = `{"Type":"vxlan","VNI":4096,"Port":4789}` // the only values that HNS supports
	}
	if o.dual {
		o.lab.Family = lab.Dual
	}
	if !strings.HasPrefix(o.backend, "{") {
		o.backend = fmt.Sprintf(`{"Type":%q}`, o.backend)
	}
	return o, err
}
