package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"flannel/internal/test/nettest"
)

// machine is a node with the real plugins, which tests call through libcni as
// containerd does.
type machine struct {
	*testing.T
	dir  string
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// kubeFlannelList is a configuration list; configure replaces DIR and VERSION.
const kubeFlannelList = `{"name":"cbr0","cniVersion":"VERSION","plugins":[
	{"type":"flannel","subnetFile":"DIR/subnet.env","dataDir":"DIR/saved","ipam":{"dataDir":"DIR/leases"},"delegate":{"hairpinMode":true,"isDefaultGateway":true}},
	{"type":"portmap","capabilities":{"portMappings":true}},
	{"type":"bandwidth","capabilities":{"bandwidth":true}},
	{"type":"tuning","sysctl":{"net.core.somaxconn":"500"}}]}`

// newMachine returns a node with the plugin as it is built by make plugin.
func newMachine(t *testing.T, env string) *machine {
	m := &machine{T: t, dir: t.TempDir()}
	m.must(os.Mkdir(filepath.Join(m.dir, "bin"), 0o755))
	for _, name := range []string{"flannel", "bridge", "host-local", "portmap", "bandwidth", "tuning", "macvlan", "ipvlan"} {
		m.must(os.Symlink(nettest.Tool(t, "cni/"+name), filepath.Join(m.dir, "bin", name)))
	}
	m.must(os.MkdirAll("/run/netns", 0o755))
	m.setEnv(env)
	// libcni would create exec at its first call, which is a data race.
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	m.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Join(m.dir, "bin")}, filepath.Join(m.dir, "cache"), exec)
	return m
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *machine) setEnv(text string) {
	m.must(os.WriteFile(filepath.Join(m.dir, "subnet.env"), []byte(text), 0o644))
}

// useUpstream installs either the flannel plugin of containernetworking/plugins
// v0.9.1, the last release that has one, or the plugin under test.
func (m *machine) useUpstream(upstream bool) {
	path := filepath.Join(m.dir, "bin", "flannel")
	m.must(os.Remove(path))
	m.must(os.Symlink(nettest.Tool(m, map[bool]string{true: "cni-former/flannel", false: "cni/flannel"}[upstream]), path))
}

func (m *machine) configure(text, version string) {
	m.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(strings.NewReplacer("DIR", m.dir, "VERSION", version).Replace(text)))
	m.must(err)
	m.list = list
}

// makeNetns creates the network namespace of a pod.
func (m *machine) makeNetns(pod string) {
	m.Helper()
	if out, err := exec.Command("ip", "netns", "add", pod).CombinedOutput(); err != nil {
		m.Fatalf("%v: %s", err, out)
	}
}

func (m *machine) deleteNetns(pod string) {
	if out, err := exec.Command("ip", "netns", "delete", pod).CombinedOutput(); err != nil {
		m.Errorf("%v: %s", err, out)
	}
}

func (m *machine) runtime(pod string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: pod, NetNS: "/run/netns/" + pod, IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", pod}}}
}

func (m *machine) add(ctx context.Context, rt *libcni.RuntimeConf) ([]netip.Prefix, error) {
	result, err := m.cni.AddNetworkList(ctx, m.list, rt)
	if err != nil {
		return nil, err
	}
	got, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	var all []netip.Prefix
	for _, ip := range got.IPs {
		all = append(all, netip.MustParsePrefix(ip.Address.String()))
	}
	return all, nil
}

// addrs returns the actual addresses and MTU of a pod's interface.
func (m *machine) addrs(pod string) (all []string, mtu int) {
	m.Helper()
	ns, err := netns.GetFromName(pod)
	m.must(err)
	defer ns.Close() //nolint:errcheck // nothing was written
	h, err := netlink.NewHandleAt(ns)
	m.must(err)
	defer h.Close()
	link, err := h.LinkByName("eth0")
	if err != nil {
		return nil, 0
	}
	list, err := h.AddrList(link, netlink.FAMILY_ALL)
	m.must(err)
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			all = append(all, a.IPNet.String())
		}
	}
	slices.Sort(all)
	return all, link.Attrs().MTU
}

// leftovers returns what pods have left on the node: saved configurations,
// addresses of host-local, interfaces and port mappings.
func (m *machine) leftovers() (all []string) {
	m.Helper()
	for _, pattern := range []string{"saved/*", "saved/.*", "leases/cbr0/[0-9]*", "cache/results/*"} {
		files, err := filepath.Glob(filepath.Join(m.dir, pattern))
		m.must(err)
		for _, f := range files {
			if info, err := os.Lstat(f); err == nil && info.Mode().IsRegular() {
				all = append(all, strings.TrimPrefix(f, m.dir+"/"))
			}
		}
	}
	links, err := netlink.LinkList()
	m.must(err)
	for _, l := range links {
		if name := l.Attrs().Name; name != "lo" && name != "cni0" && name != "sit0" && name != "parent0" && name != "parent1" {
			all = append(all, "interface "+name)
		}
	}
	if out, err := exec.Command("iptables-save", "-t", "nat").Output(); err == nil && strings.Contains(string(out), "--comment \"dnat") {
		all = append(all, "port mappings")
	}
	return all
}

func capabilities() map[string]any {
	var args map[string]any
	const text = `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"bandwidth":{"ingressRate":8000000,"ingressBurst":8000000}}`
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return args
}
