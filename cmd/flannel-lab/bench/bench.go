// Package bench measures, in labs, the costs of a daemon at scale, and compares
// them to the costs of the kernel alone. The command flannel-lab bench calls Parse and Run.
//
// Its peers exist only as leases in the store. A figure is a number with a key, such as
// first_sync_ms, whose end is the unit; the tables of rows (report.go and others) give the
// keys titles. Figures of one kind of lab, backend and number of peers are a column.
package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// Options are the command-line options of the bench.
type Options struct {
	lab      lab.Options
	peers    []int // numbers of peers in etcd
	far      []int // numbers of peers in etcd for which only starts are measured
	kube     []int // numbers of peers in Kubernetes
	backends []string
	rounds   int           // starts for each column
	samples  int           // peers that are added, changed and removed one by one
	idle     time.Duration // how long idle CPU is measured
	memory   []int         // numbers of peers in etcd with which memory is measured
	quiet    []int         // numbers of peers in etcd with which idle CPU is measured
	settle   time.Duration // from the end of the first sync until memory is read
	nftables bool          // EnableNFTables in the network configuration
	json     bool          // print JSON instead of tables
}

// flags sets the defaults, and returns a flag set that sets o when it parses. -quick
// sets several options; those after it on the command line take precedence.
func (o *Options) flags() *flag.FlagSet {
	f := flag.NewFlagSet("flannel-lab bench", flag.ContinueOnError)
	o.peers, o.far, o.backends, o.kube = []int{1000, 5000, 10000}, []int{50000}, []string{"vxlan", "host-gw"}, []int{5000}
	o.memory, o.quiet = []int{3, 1000, 10000, 50000}, []int{10000}
	f.Func("peers", "comma-separated `numbers` of peers in etcd; 0 to skip (default 1000,5000,10000)",
		list(&o.peers, strconv.Atoi))
	f.Func("far-peers", "comma-separated `numbers` of peers in etcd for which only starts are measured, without plain routes; 0 to skip (default 50000)", list(&o.far, strconv.Atoi))
	f.Func("kube-peers", "comma-separated `numbers` of peers in Kubernetes; 0 to skip (default 5000)",
		list(&o.kube, strconv.Atoi))
	f.Func("backends", "comma-separated `types`; 0 to skip (default vxlan,host-gw)",
		list(&o.backends, func(s string) (string, error) { return s, nil }))
	f.Func("memory-peers", "comma-separated `numbers` of peers in etcd among which the memory of vxlan is measured; 0 to skip (default 3,1000,10000,50000)",
		list(&o.memory, strconv.Atoi))
	f.DurationVar(&o.settle, "settle", time.Minute, "how long after the start memory is measured")
	f.IntVar(&o.rounds, "rounds", 3, "starts on an empty kernel per column; the lowest of each figure is reported, because other load only increases them (of peak RSS the highest)")
	f.IntVar(&o.samples, "samples", 200, "peers added, changed and removed one by one, per column")
	f.Func("idle-peers", "comma-separated `numbers` of peers in etcd among which the idle CPU of vxlan is measured; 0 to skip (default 10000)",
		list(&o.quiet, strconv.Atoi))
	f.DurationVar(&o.idle, "idle", 5*time.Minute, "how long idle CPU is measured with --idle-peers")
	f.BoolVar(&o.nftables, "nftables", false, "use nftables instead of iptables")
	f.BoolVar(&o.json, "json", false, "print JSON instead of tables")
	f.BoolFunc("quick", "a short run: 1000 peers, one round, 50 samples, no idle CPU, no memory, no Kubernetes", func(string) error {
		o.kube, o.far, o.memory, o.quiet = nil, nil, nil, nil
		o.peers, o.rounds, o.samples = []int{1000}, 1, 50
		return nil
	})
	f.StringVar(&o.lab.Flanneld, "flanneld", "", "any flannel-compatible `binary` (default: bin/flanneld)")
	f.StringVar(&o.lab.Etcd, "etcd", "", "any etcd `binary` (default: bin/etcd)")
	f.StringVar(&o.lab.BinDir, "bin", "", "`directory` of flanneld, etcd and cni/ (default: bin)")
	return f
}

// list returns a flag function that replaces *to by the parsed elements of a
// comma-separated list.
func list[T any](to *[]T, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		*to = nil
		for word := range strings.SplitSeq(s, ",") {
			value, err := parse(strings.TrimSpace(word))
			if err != nil {
				return err
			}
			*to = append(*to, value)
		}
		return nil
	}
}

// Parse parses the command line. It returns flag.ErrHelp after it has printed
// the help.
func Parse(args []string) (Options, error) {
	var o Options
	f := o.flags()
	f.SetOutput(io.Discard) // the caller prints the error
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(os.Stdout)
		f.PrintDefaults()
		return o, err
	}
	for _, peers := range []*[]int{&o.peers, &o.far, &o.kube} {
		*peers = slices.DeleteFunc(*peers, func(n int) bool { return n == 0 })
		for _, n := range *peers {
			// Peers are added beyond the first n: samples one by one, singleOnes in Kubernetes,
			// and some at a restart (fewer than n/50). All need a number below lastPeer.
			if limit := lastPeer - firstPeer - max(o.samples, singleOnes) - n/50; n < 100 || n > limit {
				err = errors.Join(err, fmt.Errorf("%d peers: must be between 100 and %d", n, limit))
			}
		}
	}
	for name, peers := range map[string]*[]int{"memory-peers": &o.memory, "idle-peers": &o.quiet} {
		*peers = slices.DeleteFunc(*peers, func(n int) bool { return n == 0 })
		for _, n := range *peers {
			if n < 0 || n > lastPeer-firstPeer {
				err = errors.Join(err, fmt.Errorf("--%s %d: must be between 0 and %d", name, n, lastPeer-firstPeer))
			}
		}
	}
	o.backends = slices.DeleteFunc(o.backends, func(s string) bool { return s == "0" })
	for _, backend := range o.backends {
		if !slices.Contains([]string{"vxlan", "host-gw"}, backend) {
			err = errors.Join(err, fmt.Errorf("--backends %s: use vxlan or host-gw", backend))
		}
	}
	switch {
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("bench: unexpected argument %q", f.Arg(0))
	case err == nil && (o.rounds < 1 || o.samples < 1):
		err = errors.New("--rounds and --samples must be at least 1")
	}
	o.lab.Nodes = 2 // one with the daemon, one for the kernel alone; see type bench
	return o, err
}

// Run measures all columns and prints the results at the end. Progress goes to
// stderr. Kubernetes comes before etcd, so that a missing bin/kube is noticed
// early.
func Run(ctx context.Context, w io.Writer, o Options) error {
	var kube, etcd, memory, quiet []column
	for _, peers := range o.kube {
		c, err := measureKube(ctx, o, peers)
		if err != nil {
			return fmt.Errorf("kubernetes with %d peers: %w", peers, err)
		}
		kube = append(kube, c)
	}
	for _, backend := range o.backends {
		for i, peers := range slices.Concat(o.peers, o.far) {
			c, err := measureColumn(ctx, o, backend, peers, i >= len(o.peers))
			if err != nil {
				return fmt.Errorf("%s with %d peers: %w", backend, peers, err)
			}
			etcd = append(etcd, c)
		}
	}
	for _, peers := range o.memory {
		c, err := measureMemory(ctx, o, peers)
		if err != nil {
			return fmt.Errorf("memory with %d peers: %w", peers, err)
		}
		memory = append(memory, c)
	}
	for _, peers := range o.quiet {
		c, err := measureIdle(ctx, o, peers)
		if err != nil {
			return fmt.Errorf("idle with %d peers: %w", peers, err)
		}
		quiet = append(quiet, c)
	}
	if o.json { // in the order of the tables
		return printJSON(w, slices.Concat(etcd, kube, memory, quiet))
	}
	return errors.Join(printTables(w, etcd, kube), printMore(w, "memory", memory, memoryRows), printMore(w, "nothing happens", quiet, idleRows))
}

// printTables prints the columns of etcd and those of Kubernetes, one table each.
func printTables(w io.Writer, etcd, kube []column) error {
	if len(etcd) > 0 {
		fmt.Fprintln(w, "leases in etcd")
		if err := printTable(w, etcd, etcdRows, head{"target", "at 10000"}); err != nil {
			return err
		}
	}
	if len(kube) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nleases in Kubernetes")
	if err := printTable(w, kube, kubeRows, head{"target", "at 5000"}, head{"flannel*", "at 5000"}); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "* v0.28.9, measured earlier on another machine of this kind")
	return err
}

// printMore prints columns of their own, with leases in etcd, unless there are none.
func printMore(w io.Writer, title string, columns []column, rows []row) error {
	if len(columns) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s, leases in etcd\n", title)
	return printTable(w, columns, rows, head{"target", "at 10000"})
}

// measureColumn measures several rounds with leases in etcd, each in a lab of its own. For
// many peers (far), only starts are measured.
func measureColumn(ctx context.Context, o Options, backend string, peers int, far bool) (column, error) {
	c := column{Store: "etcd", Backend: backend, Peers: peers}
	var rounds []map[string]float64
	for i := range o.rounds {
		fmt.Fprintf(os.Stderr, "%s, %d peers: start %d of %d\n", backend, peers, i+1, o.rounds)
		figures, err := measureRound(ctx, o, backend, peers, far, i == o.rounds-1)
		if err != nil {
			return c, err
		}
		rounds = append(rounds, figures)
	}
	c.Figures = best(rounds)
	c.compare() // adds the figures that follow from others
	return c, nil
}

// best returns the lowest value of each figure, and the highest of peak
// memory. Other load on the machine only increases times and counts, so the lowest is
// the least wrong; a peak is missed when memory is read too early, so the highest is.
func best(rounds []map[string]float64) map[string]float64 {
	samples := map[string][]float64{}
	for _, figures := range rounds {
		for key, v := range figures {
			samples[key] = append(samples[key], v)
		}
	}
	figures := map[string]float64{}
	for key, v := range samples {
		figures[key] = slices.Min(v)
		if strings.HasSuffix(key, "_rss_mb") {
			figures[key] = slices.Max(v)
		}
	}
	return figures
}

// measureRound measures the first sync and the kernel alone. In the last round
// it also measures everything after the first sync: with far only the restart.
func measureRound(ctx context.Context, o Options, backend string, peers int, far, last bool) (map[string]float64, error) {
	b, err := newBench(ctx, o, backend, peers)
	if err != nil {
		return nil, err
	}
	defer b.close()
	forms := []string{"plain", "nexthop"}
	if far {
		forms = forms[1:] // plain routes take minutes, because their cost grows with the square of their number
	}
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return b.kernelAlone(ctx, forms) },
		b.firstSync,
	}
	switch {
	case far && last:
		steps = append(steps, b.restart)
	case last:
		steps = append(steps, b.idlePass, b.oneByOne, b.restart)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("%w; end of the log of the daemon: %s", err, logEnd(b.node.Log()))
		}
	}
	return b.figures, nil
}

// logEnd returns the last 500 bytes of a log.
func logEnd(log string) string {
	return log[max(0, len(log)-500):]
}

// quantile returns the q-quantile of v, which must not be empty, and sorts v. With up to a
// hundred samples, 0.99 is the largest one.
func quantile(v []float64, q float64) float64 {
	slices.Sort(v)
	return v[min(len(v)-1, int(q*float64(len(v))))]
}
