// Package bench measures what a daemon costs at scale, beside the kernel alone, in labs.
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

// Options are the command line of the bench.
type Options struct {
	lab      lab.Options
	peers    []int
	far      []int // of which only starts are measured
	kube     []int // peers in Kubernetes
	windows  []int // peers of a Windows node
	backends []string
	delays   []time.Duration
	rounds   int
	samples  int
	idle     time.Duration
	nftables bool
	json     bool
}

func (o *Options) flags() *flag.FlagSet {
	f := flag.NewFlagSet("flannel-lab bench", flag.ContinueOnError)
	o.peers, o.far, o.backends, o.kube = []int{1000, 5000, 10000}, []int{50000}, []string{"vxlan", "host-gw"}, []int{5000}
	o.windows = []int{250, 2000}
	o.delays = []time.Duration{500 * time.Microsecond, 2500 * time.Microsecond}
	f.Func("peers", "comma list of `numbers` of peers in etcd, or 0 for none of this (default 1000,5000,10000)", list(&o.peers, strconv.Atoi))
	f.Func("far-peers", "comma list of `numbers` of peers in etcd of which only starts are measured, and no plain routes of the kernel, or 0 for none of this (default 50000)", list(&o.far, strconv.Atoi))
	f.Func("kube-peers", "comma list of `numbers` of peers in Kubernetes, or 0 for none of this (default 5000)", list(&o.kube, strconv.Atoi))
	f.Func("windows-peers", "comma list of `numbers` of peers of a Windows node, on a simulated machine, or 0 for none of this (default 250,2000)", list(&o.windows, strconv.Atoi))
	f.Func("backends", "comma list of `types` (default vxlan,host-gw)", list(&o.backends, func(s string) (string, error) { return s, nil }))
	f.Func("delays", "comma list of one-way `delays` to etcd, or 0 for none of this (default 0.5ms,2.5ms)", list(&o.delays, time.ParseDuration))
	f.IntVar(&o.rounds, "rounds", 3, "starts from nothing per column; of each figure the best counts, for other work on the machine only ever adds (of peak RSS the worst)")
	f.IntVar(&o.samples, "samples", 200, "peers added, changed and removed one by one, per column")
	f.DurationVar(&o.idle, "idle", 10*time.Second, "how long idle CPU is watched")
	f.BoolVar(&o.nftables, "nftables", false, "firewall by nftables instead of iptables")
	f.BoolVar(&o.json, "json", false, "JSON instead of a table")
	f.BoolFunc("quick", "a short run: 1000 peers, one round, 50 samples, 2 s idle, no Kubernetes", func(string) error {
		o.kube, o.far = nil, nil
		o.peers, o.rounds, o.samples, o.idle, o.delays = []int{1000}, 1, 50, 2*time.Second, o.delays[:1]
		return nil
	})
	f.StringVar(&o.lab.Flanneld, "flanneld", "", "any flannel-compatible `binary` (default: bin/flanneld)")
	f.StringVar(&o.lab.Etcd, "etcd", "", "any etcd `binary` (default: bin/etcd)")
	f.StringVar(&o.lab.BinDir, "bin", "", "`directory` of flanneld, etcd and cni/ (default: bin)")
	return f
}

// list parses a comma list in the place of what to holds.
func list[T any](to *[]T, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		*to = nil
		for word := range strings.SplitSeq(s, ",") {
			one, err := parse(strings.TrimSpace(word))
			if err != nil {
				return err
			}
			*to = append(*to, one)
		}
		return nil
	}
}

// Parse reads the command line. Its error is flag.ErrHelp after it printed what there is.
func Parse(args []string) (Options, error) {
	var o Options
	f := o.flags()
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(os.Stdout)
		f.PrintDefaults()
		return o, err
	}
	o.delays = slices.DeleteFunc(o.delays, func(d time.Duration) bool { return d <= 0 })
	for _, peers := range []*[]int{&o.peers, &o.far, &o.kube} {
		*peers = slices.DeleteFunc(*peers, func(n int) bool { return n == 0 })
		for _, n := range *peers {
			if most := lastPeer - firstPeer - max(o.samples, 2*newNodes) - n/50; n < 100 || n > most {
				err = errors.Join(err, fmt.Errorf("%d peers: from 100 to %d there is room", n, most))
			}
		}
	}
	o.windows = slices.DeleteFunc(o.windows, func(n int) bool { return n <= 0 })
	for _, n := range o.windows {
		if n > 60000 {
			err = errors.Join(err, fmt.Errorf("%d peers of a Windows node: up to 60000 there is room", n))
		}
	}
	for _, b := range o.backends {
		if b != "vxlan" && b != "host-gw" {
			err = errors.Join(err, fmt.Errorf("--backends %q: the bench knows vxlan and host-gw", b))
		}
	}
	switch {
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("bench takes no %q", f.Arg(0))
	case err == nil && (o.rounds < 1 || o.samples < 1):
		err = errors.New("--rounds and --samples start at 1")
	}
	o.lab.Nodes = 2
	return o, err
}

// Run measures column by column and prints all in the end; what it is at goes to stderr. Kubernetes comes first:
// if bin/kube is missing, nobody waits for minutes to hear of it.
func Run(ctx context.Context, w io.Writer, o Options) error {
	var kube, etcd, windows []column
	for _, backend := range o.backends {
		for _, peers := range o.windows {
			c, err := measureHNS(ctx, backend, peers)
			if err != nil {
				return fmt.Errorf("a Windows node with %d peers: %w", peers, err)
			}
			windows = append(windows, c)
		}
	}
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
	if o.json {
		return printJSON(w, slices.Concat(etcd, kube, windows))
	}
	return errors.Join(printTables(w, etcd, kube), printWindows(w, windows))
}

func printTables(w io.Writer, etcd, kube []column) error {
	if len(etcd) > 0 {
		fmt.Fprintln(w, "leases in etcd")
		if err := printTable(w, etcd, append(slices.Clip(etcdRows), awayRows(etcd)...), head{"target", "at 10000"}); err != nil {
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
	_, err := fmt.Fprintln(w, "* v0.28.9, measured elsewhere: another machine of this kind, another day")
	return err
}

func printWindows(w io.Writer, columns []column) error {
	if len(columns) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\na Windows node on a simulated machine")
	return printTable(w, columns, hnsRows, head{"target", ""})
}

// measureColumn starts from nothing several times, each time in a lab of its own, and measures the rest in the last;
// of many peers (far), only starts.
func measureColumn(ctx context.Context, o Options, backend string, peers int, far bool) (column, error) {
	c := column{Store: "etcd", Backend: backend, Peers: peers}
	var all []map[string]float64
	for i := range o.rounds {
		fmt.Fprintf(os.Stderr, "%s, %d peers: start %d of %d\n", backend, peers, i+1, o.rounds)
		figures, err := measureRound(ctx, o, backend, peers, far, i == o.rounds-1)
		if err != nil {
			return c, err
		}
		all = append(all, figures)
	}
	for _, d := range o.delays {
		for i := range o.rounds { // else what a single start had of other work would count as round trips
			if far {
				break
			}
			fmt.Fprintf(os.Stderr, "%s, %d peers: etcd %v away, start %d of %d\n", backend, peers, d, i+1, o.rounds)
			figures, err := measureDelay(ctx, o, backend, peers, d)
			if err != nil {
				return c, err
			}
			all = append(all, figures)
		}
	}
	c.Figures = best(all)
	c.compare(o.delays)
	return c, nil
}

// best takes of each figure the lowest, of memory the highest.
func best(all []map[string]float64) map[string]float64 {
	samples := map[string][]float64{}
	for _, figures := range all {
		for key, v := range figures {
			samples[key] = append(samples[key], v)
		}
	}
	one := map[string]float64{}
	for key, v := range samples {
		one[key] = slices.Min(v)
		if strings.HasSuffix(key, "_rss_mb") {
			one[key] = slices.Max(v)
		}
	}
	return one
}

// measureRound measures the first sync and the kernel beside it; the last round also all that comes later in a
// daemon's life.
func measureRound(ctx context.Context, o Options, backend string, peers int, far, last bool) (map[string]float64, error) {
	b, err := newBench(ctx, o, backend, peers)
	if err != nil {
		return nil, err
	}
	defer b.close()
	forms := []string{"plain", "nexthop"}
	if far {
		forms = forms[1:] // plain routes cost the square of their number: minutes
	}
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return b.kernelAlone(ctx, forms) },
		b.firstSync,
	}
	switch {
	case far && last:
		steps = append(steps, b.restart)
	case last:
		steps = append(steps, b.idlePass, b.oneByOne, b.idle, b.restart)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("%w; the daemon's last words: %s", err, lastWords(b.node.Log()))
		}
	}
	return b.figures, nil
}

func lastWords(log string) string {
	return log[max(0, len(log)-500):]
}

// quantile sorts v.
func quantile(v []float64, q float64) float64 {
	slices.Sort(v)
	return v[min(len(v)-1, int(q*float64(len(v))))]
}
