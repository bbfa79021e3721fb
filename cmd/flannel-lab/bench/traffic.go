package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

const (
	trafficDuration = 3 * time.Second
	bareLink        = "bare link" // the column of the link between the nodes, without any backend
)

// trafficBackends are the backends that move packets by themselves.
var trafficBackends = []string{"host-gw", "vxlan", "ipip", "wireguard", "ipsec", "udp"}

var trafficRows = []row{
	{"traffic_gbit", "one TCP stream, Gb/s", "udp: 4", ""},
	{"traffic_ratio", "the same / bare link", "", ""},
	{"traffic_cpu_s", "CPU of the machine, both nodes, per GB, s", "", ""},
	{"traffic_rtt_us", "ping, p50, µs", "", ""},
	{"traffic_mtu", "MTU of the pods", "", ""},
}

// measureTraffic measures what moves between two pods, for each backend in turn, several
// times: so all of them meet the same load of other processes.
func measureTraffic(ctx context.Context, o Options) ([]column, error) {
	columns := []column{{Store: "traffic", Backend: bareLink}}
	for _, backend := range o.traffic {
		columns = append(columns, column{Store: "traffic", Backend: backend, Peers: o.trafficPeers})
	}
	rounds := make([][]map[string]float64, len(columns))
	for i := range o.rounds {
		for j, c := range columns {
			fmt.Fprintf(os.Stderr, "traffic, %s: %d of %d\n", c.Backend, i+1, o.rounds)
			figures, err := trafficRound(ctx, o, c.Backend)
			if err != nil {
				return nil, fmt.Errorf("traffic, %s: %w", c.Backend, err)
			}
			rounds[j] = append(rounds[j], figures)
		}
	}
	for j := range columns {
		columns[j].Figures = best(rounds[j])
		columns[j].Figures["traffic_ratio"] = columns[j].Figures["traffic_gbit"] / columns[0].Figures["traffic_gbit"]
	}
	return columns, nil
}

// trafficRound measures one backend, or the bare link, in a lab of its own.
func trafficRound(ctx context.Context, o Options, backend string) (figures map[string]float64, err error) {
	b := &bench{options: o, backend: backend}
	if b.lab, err = lab.New(ctx, o.lab); err != nil {
		return nil, err
	}
	defer b.close()
	a, z := b.lab.Nodes[0], b.lab.Nodes[1]
	if backend == bareLink {
		return throughput(ctx, a.Namespaces, z.Namespaces, z.IP4, lab.Uplink)
	}
	if b.etcd, err = b.lab.Etcd.Client(); err != nil {
		return nil, err
	}
	if err := b.onLink(ctx); err != nil {
		return nil, err
	}
	if _, err := populateEtcd(ctx, b.etcd, o, backend, peersFrom(0, o.trafficPeers)); err != nil {
		return nil, err
	}
	if err := b.lab.StartAll(ctx); err != nil {
		return nil, fmt.Errorf("%w; end of the log of the daemon: %s", err, logEnd(a.Log()))
	}
	from, err := a.AddPod(ctx, "a")
	if err != nil {
		return nil, err
	}
	to, err := z.AddPod(ctx, "z")
	if err != nil {
		return nil, err
	}
	return throughput(ctx, from.Namespaces, to.Namespaces, to.IP4, "eth0")
}

// throughput measures ping and one TCP stream between two namespaces. device is that of
// the sender.
func throughput(ctx context.Context, from, to machine.Namespaces, at netip.Addr, device string) (map[string]float64, error) {
	if _, err := from.Reach(ctx, at, time.Minute); err != nil {
		return nil, err
	}
	rtt, err := pingTime(ctx, from, at)
	if err != nil {
		return nil, err
	}
	mtu, err := mtuOf(ctx, from, device)
	if err != nil {
		return nil, err
	}
	before, err := machineCPU()
	if err != nil {
		return nil, err
	}
	moved, err := machine.Transfer(ctx, from, to, at, trafficDuration)
	if err != nil {
		return nil, err
	}
	after, err := machineCPU()
	return map[string]float64{"traffic_gbit": moved.Gbit(), "traffic_rtt_us": rtt, "traffic_mtu": mtu,
		"traffic_cpu_s": (after - before).Seconds() / (float64(moved.Bytes) / 1e9)}, err
}

var linkMTU = regexp.MustCompile(` mtu ([0-9]+) `)

// mtuOf asks the kernel, because /sys shows a pod the devices of its node.
func mtuOf(ctx context.Context, ns machine.Namespaces, device string) (float64, error) {
	out, err := ns.Run(ctx, "ip", "-o", "link", "show", "dev", device)
	if err != nil {
		return 0, err
	}
	m := linkMTU.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("ip printed no MTU of %s: %s", device, out)
	}
	return strconv.ParseFloat(m[1], 64)
}

var pingAnswer = regexp.MustCompile(` time=([0-9.]+) ms`)

// pingTime returns the median of 200 pings, in µs.
func pingTime(ctx context.Context, from machine.Namespaces, to netip.Addr) (float64, error) {
	out, err := from.Run(ctx, "ping", "-n", "-c", "200", "-i", "0.005", to.String())
	if err != nil {
		return 0, err
	}
	var times []float64
	for _, m := range pingAnswer.FindAllStringSubmatch(out, -1) {
		ms, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, fmt.Errorf("ping: %w", err)
		}
		times = append(times, ms*1000)
	}
	if len(times) == 0 {
		return 0, fmt.Errorf("ping printed no times: %s", out)
	}
	return quantile(times, 0.5), nil
}

// machineCPU returns the time that all processors have worked, for programs and for the
// kernel, since boot (proc_stat(5): user, nice, system, irq and softirq).
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat: unexpected line %q", line)
	}
	var ticks time.Duration
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond, nil
}

// possible reports whether this machine can run a backend, and prints why not.
func possible(ctx context.Context, backend string) bool {
	var probe, other string // what the kernel must be able to create, and a program that does without it
	switch backend {
	case "ipip":
		probe = "link add probe type ipip local 127.0.0.1" // without an address, it would be like the module's own tunl0
	case "wireguard":
		probe, other = "link add probe type wireguard", "wireguard-go"
	case "ipsec":
		probe = "xfrm state add src 127.0.0.1 dst 127.0.0.1 proto esp spi 1 mode tunnel aead rfc4106(gcm(aes)) 0x" + strings.Repeat("00", 20) + " 128"
	default:
		return true
	}
	// In namespaces of its own, which end with the command.
	err := exec.CommandContext(ctx, "unshare", append([]string{"-n", "ip"}, strings.Fields(probe)...)...).Run()
	if err != nil && other != "" {
		_, err = exec.LookPath(other)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: left out, because this kernel does not have it\n", backend)
	}
	return err == nil
}

// oneOf returns an error for each backend of a flag that is not a known one.
func oneOf(flag string, backends, known []string) (err error) {
	for _, b := range backends {
		if !slices.Contains(known, b) {
			err = errors.Join(err, fmt.Errorf("%s %q: must be one of %s", flag, b, strings.Join(known, ", ")))
		}
	}
	return err
}
