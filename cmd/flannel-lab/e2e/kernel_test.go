package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/nstest/ipshow"
)

// try runs a shell command and returns its trimmed output.
func try(ctx context.Context, at machine.Namespaces, format string, args ...any) (string, error) {
	out, err := at.Run(ctx, "sh", "-ec", fmt.Sprintf(format, args...))
	return strings.TrimSpace(out), err
}

// shell is like try, and fails the test on an error.
func shell(t *testing.T, at machine.Namespaces, format string, args ...any) string {
	t.Helper()
	out, err := try(t.Context(), at, format, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// eventually waits until read returns want, and returns how long that took, which it logs if it was long.
func eventually(t *testing.T, why string, want string, read func(context.Context) (string, error)) time.Duration {
	t.Helper()
	took, err := machine.Until(t.Context(), timeout, func(ctx context.Context) error {
		got, err := read(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("got\n%s\nwant\n%s", got, want)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", why, err)
	}
	if took > time.Second {
		t.Logf("%s after %v", why, took.Round(time.Millisecond))
	}
	return took
}

// noise matches what may differ between two equal states: numbers of nexthop
// objects and devices, and timers.
var noise = regexp.MustCompile(`nhid \d+ |^id \d+ |^\d+: | (state \w+ )?$|pref medium|expires \S+|qlen \d+|group default|linkdown`)

// words sorts the lines of an output and removes noise.
func words(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.Join(strings.Fields(noise.ReplaceAllString(strings.TrimSpace(line), "")), " "); line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// kernel returns, as text, everything that flanneld keeps in the kernel of a
// node, except for the firewall.
func kernel(ctx context.Context, n *lab.Node) (string, error) {
	var all lines
	err := n.Do(func() error {
		all.add("")(ipshow.Routes())
		all = slices.DeleteFunc(all, func(line string) bool { return strings.Contains(line, " proto kernel") })
		all.add("")(ipshow.Nexthops(70))
		devices, err := ipshow.Devices()
		for _, dev := range devices {
			if ofOthers.MatchString(dev) {
				continue
			}
			all.addTunnel(dev)
			all.add(dev + " ")(ipshow.Addresses(dev))
			all.add("")(ipshow.Device(dev))
		}
		for _, forwarding := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
			on, readErr := os.ReadFile(forwarding)
			all, err = append(all, fmt.Sprintf("%s %s", forwarding, on)), errors.Join(err, readErr)
		}
		return err
	})
	return words(strings.Join(all, "\n")), err
}

// ofOthers matches devices that flanneld has not made.
var ofOthers = regexp.MustCompile(`^(lo|cni|veth|eth0)`)

// lines collects lines of ipshow. What is gone by the time it is read has none.
type lines []string

func (l *lines) add(prefix string) func(more []string, err error) {
	return func(more []string, err error) {
		if err != nil {
			*l = append(*l, prefix+err.Error())
		}
		for _, line := range more {
			*l = append(*l, prefix+line)
		}
	}
}

// addTunnel adds the neighbours and permanent FDB entries of a device.
func (l *lines) addTunnel(dev string) {
	l.add(dev + " neigh ")(ipshow.Neighbours(dev))
	fdb, err := ipshow.FDB(dev)
	l.add(dev+" fdb ")(slices.DeleteFunc(fdb, func(entry string) bool { return !strings.HasSuffix(entry, " permanent") }), err)
}

// entries returns the routes, neighbours and FDB entries of all tunnels of a
// node, one per line; on a Windows node the corresponding state of HNS.
func entries(ctx context.Context, n *lab.Node) (string, error) {
	if n.Windows != nil {
		return hnsEntries(n)
	}
	var all lines
	err := n.Do(func() error {
		devices, err := ipshow.Devices()
		if err != nil {
			return err
		}
		routes, err := ipshow.Routes()
		for _, route := range ipshow.Within(routes, podNetworks...) {
			words := strings.Fields(route)
			i := slices.Index(words, "dev")
			if i < 0 || !strings.HasPrefix(words[i+1], "flannel") || strings.Contains(route, " proto kernel") {
				continue
			}
			dev := words[i+1]
			all = append(all, dev+" "+strings.Join(slices.Delete(words, i, i+2), " "))
		}
		for _, dev := range devices {
			if strings.HasPrefix(dev, "flannel") {
				all.addTunnel(dev)
			}
		}
		return err
	})
	return words(strings.NewReplacer(" proto 70", "", " metric 1024", "").Replace(strings.Join(all, "\n"))), err
}

// value is a lease as flannel writes it.
type value struct {
	PublicIP      string
	PublicIPv6    *string
	BackendType   string `json:",omitempty"`
	BackendData   *vtep  `json:",omitempty"`
	BackendV6Data *vtep  `json:",omitempty"`
}

type vtep struct {
	VNI     int
	VtepMAC string
}

// leases returns the leases by key, from etcd or from Nodes.
func leases(t *testing.T, l *lab.Lab) map[string]value {
	t.Helper()
	raw, err := l.Leases(t.Context())
	must(t, err)
	all := map[string]value{}
	for key, text := range raw {
		var v value
		if l.Kube != nil {
			var annotations map[string]string
			must(t, json.Unmarshal([]byte(text), &annotations))
			_, cidr, _ := strings.Cut(key, " ")
			key, v = strings.Replace(cidr, "/", "-", 1), leaseFromAnnotations(t, annotations)
		} else {
			must(t, json.Unmarshal([]byte(text), &v))
		}
		all[key] = v
	}
	return all
}

// leaseFromAnnotations returns the IPv4 lease in the annotations of a Node.
func leaseFromAnnotations(t *testing.T, annotations map[string]string) value {
	t.Helper()
	const prefix = "flannel.alpha.coreos.com/"
	v := value{PublicIP: annotations[prefix+"public-ip"], BackendType: annotations[prefix+"backend-type"]}
	if data := annotations[prefix+"backend-data"]; data != "" {
		must(t, json.Unmarshal([]byte(data), &v.BackendData))
	}
	return v
}

const leasePrefix = "/coreos.com/network/subnets/"

// putLease writes a lease as another node would. nil deletes it.
func putLease(t *testing.T, l *lab.Lab, key string, v *value) {
	t.Helper()
	c, err := l.Etcd.Client()
	must(t, err)
	if v == nil {
		_, err = c.Delete(t.Context(), leasePrefix+key)
		must(t, err)
		return
	}
	_, err = c.Put(t.Context(), leasePrefix+key, marshal(t, v))
	must(t, err)
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	must(t, err)
	return string(text)
}

// apart is configuration that follows the backend. It keeps the subnets of real
// nodes, which are chosen at random, apart from those that tests give to fake
// peers: below 10.5.128.0, and from 10.5.192.0 on.
const apart = `,"SubnetMin":"10.5.128.0","SubnetMax":"10.5.191.0","IPv6SubnetMin":"fd05:0:0:8000::","IPv6SubnetMax":"fd05:0:0:bfff::"`

// fakeLease returns the lease of a node that does not exist. i must be below
// 128.
func fakeLease(i, generation int) (string, *value) {
	six := fmt.Sprintf("fd00:100::%x:%x", generation, i)
	mac := func(family int) *vtep { return &vtep{1, fmt.Sprintf("02:00:00:%02x:%02x:%02x", family, generation, i)} }
	return fmt.Sprintf("10.5.%d.0-24&fd05:0:0:%x::-64", i, i),
		&value{fmt.Sprintf("192.168.100.%d", (i+generation*3)%150+100), &six, "vxlan", mac(4), mac(6)}
}

// entriesOf returns what entries should return on a node, derived from the
// leases only.
func entriesOf(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	if n.Windows != nil {
		return hnsEntriesOf(t, l, n)
	}
	return entriesFrom(leases(t, l), n)
}

func entriesFrom(leases map[string]value, n *lab.Node) string {
	var lines []string
	for key, v := range leases {
		if v.PublicIP == n.IP4.String() {
			continue
		}
		add := func(key, device, public string, data *vtep) {
			if data == nil { // IPv6 of a Windows node, or the lease of another backend
				return
			}
			base, _, _ := strings.Cut(key, "-")
			device += strconv.Itoa(data.VNI)
			lines = append(lines,
				fmt.Sprintf("%s %s via %s onlink", device, strings.Replace(key, "-", "/", 1), base),
				fmt.Sprintf("%s neigh %s lladdr %s PERMANENT", device, base, data.VtepMAC),
				fmt.Sprintf("%s fdb %s dst %s self permanent", device, data.VtepMAC, public))
		}
		four, six, dual := strings.Cut(key, "&")
		add(four, "flannel.", v.PublicIP, v.BackendData)
		if dual {
			add(six, "flannel-v6.", or(v.PublicIPv6), v.BackendV6Data)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func or(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// waitSynced waits until the entries of a node match the leases exactly.
func waitSynced(t *testing.T, l *lab.Lab, n *lab.Node) time.Duration {
	t.Helper()
	return within(t, n.Name+" matches the leases", func() error { return checkSynced(t, l, n) })
}

// checkSynced returns an error if the entries of a node do not match the
// leases. It reads the leases every time, because etcd may still execute a
// request whose sender has given up.
func checkSynced(t *testing.T, l *lab.Lab, n *lab.Node) error {
	t.Helper()
	got, err := entries(t.Context(), n)
	if want := entriesOf(t, l, n); err == nil && got != want {
		err = fmt.Errorf("%s has\n%s\nwant\n%s", n.Name, got, want)
	}
	return err
}

// reach pings from one pod to another, in every family that they have.
func reach(ctx context.Context, from, to *lab.Pod) error {
	var errs []error
	for _, at := range []netip.Addr{to.IP4, to.IP6} {
		if at.IsValid() {
			_, err := from.Reach(ctx, at, timeout)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// pair creates a pod on each of the first two nodes.
func pair(t *testing.T, l *lab.Lab) (a, b *lab.Pod) {
	t.Helper()
	var both errgroup.Group // in parallel, because the first pod of a node takes a second
	both.Go(func() (err error) { a, err = l.Nodes[0].AddPod(t.Context(), "a"); return err })
	both.Go(func() (err error) { b, err = l.Nodes[1].AddPod(t.Context(), "b"); return err })
	must(t, both.Wait())
	return a, b
}
