package windows_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/windows"
	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/internal/test/nstest"
	"flannel/pkg/windows/hns"
)

// world is a namespace with a simulated Windows machine, connected to another
// namespace, which is a Linux node.
type world struct {
	t    *testing.T
	node string // nsenter command for the namespace of the node
	m    *hnstest.Machine
}

func newWorld(t *testing.T) *world {
	holder := exec.Command("unshare", "-n", "sleep", "1h")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Process.Kill(); holder.Wait() })
	w := &world{t: t, node: fmt.Sprintf("nsenter -t %d -n ", holder.Process.Pid)}
	eventually.True(t, "the node has a namespace", func() bool {
		out, _ := exec.Command("sh", "-c", w.node+"ip -br link").Output()
		return strings.Count(string(out), "\n") == 1 // only loopback: unshare has created the namespace
	})
	w.run("ip link add Ethernet address 00:15:5d:01:02:03 type veth peer name node0 netns " + strconv.Itoa(holder.Process.Pid))
	w.run("ip addr add 10.99.0.2/24 dev Ethernet")
	w.run("ip link set Ethernet up")
	w.run("ip route add default via 10.99.0.1")
	w.inNode("ip addr add 10.99.0.1/24 dev node0")
	w.inNode("ip link set node0 up")
	w.inNode("ip link set lo up")
	var err error
	if w.m, err = windows.New(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if trouble := w.m.Trouble(); len(trouble) > 0 {
			t.Error(trouble)
		}
		w.m.Close()
	})
	return w
}

func (w *world) run(command string) string {
	w.t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

func (w *world) inNode(command string) string {
	return w.run(w.node + command)
}

// reach pings until there is an answer. prefix is a command that runs ping
// elsewhere, or empty.
func (w *world) reach(prefix, args string) {
	w.t.Helper()
	command := prefix + "ping -c 1 -W 1 " + args
	eventually.Nil(w.t, command, func() error {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// Packets travel between an overlay network and a Linux node with the same VNI.
func TestOverlayCarriesPackets(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = -1 })
		id := create(t, w.m, document("flannel.4096", hns.Overlay, 4096))
		if out := w.run("ip -br addr show dev Ethernet"); strings.Contains(out, "10.99.0.2") {
			t.Errorf("the address was not removed from Ethernet: %s", out)
		}
		w.m.Turn(func(k *hnstest.Knobs) { k.Outage = 0 })
		w.reach("", "10.99.0.1")
		if out := w.run("ip route"); !strings.Contains(out, "default via 10.99.0.1 dev vEthernet1") {
			t.Errorf("no default route through the virtual adapter: %s", out)
		}
		doc, err := w.m.Network(id)
		if err != nil {
			t.Fatal(err)
		}
		n, err := hns.DecodeNetwork(doc)
		if err != nil {
			t.Fatal(err)
		}
		mac := strings.ReplaceAll(n.DRMAC.String(), "-", ":")
		w.inNode("ip link add flannel.4096 address a2:0b:cc:dd:ee:01 type vxlan id 4096 local 10.99.0.1 dstport 4789 nolearning")
		w.inNode("ip addr add 10.244.7.0/32 dev flannel.4096")
		w.inNode("ip link set flannel.4096 up")
		w.inNode("ip neigh add 10.244.5.0 lladdr " + mac + " dev flannel.4096 nud permanent")
		w.inNode("bridge fdb add " + mac + " dev flannel.4096 dst 10.99.0.2 self permanent")
		w.inNode("ip route add 10.244.5.0/24 via 10.244.5.0 dev flannel.4096 onlink")

		peer := remoteSubnet("10.244.7.0/24", "10.99.0.1", "A2-0B-CC-DD-EE-01")
		if err := w.m.ModifyNetwork(id, request("Add", peer)); err != nil {
			t.Fatal(err)
		}
		pod := json.RawMessage(`{"Name":"pod","IpConfigurations":[{"IpAddress":"10.244.5.9"}],"SchemaVersion":{"Major":2,"Minor":0}}`)
		if _, err := w.m.CreateEndpoint(id, pod); err != nil {
			t.Fatal(err)
		}
		// Remote endpoints as kube-proxy creates them: for a pod on the other node,
		// and for a Service, with this host as the provider.
		before := w.run("ip route; ip neigh show nud permanent; bridge fdb")
		for _, e := range []string{
			`"IpConfigurations":[{"IpAddress":"10.244.7.0"}],"MacAddress":"02-11-0a-f4-07-00","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"10.99.0.1"}}]`,
			`"IpConfigurations":[{"IpAddress":"10.96.0.10"}],"MacAddress":"02-11-0a-60-00-0a","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"10.99.0.2"}}]`,
		} {
			if _, err := w.m.CreateEndpoint(id, json.RawMessage(`{`+e+`,"Flags":1,"SchemaVersion":{"Major":2,"Minor":0}}`)); err != nil {
				t.Fatal(err)
			}
		}
		if after := w.run("ip route; ip neigh show nud permanent; bridge fdb"); after != before {
			t.Errorf("kube-proxy's endpoints changed routes:\n%s\nbefore:\n%s", after, before)
		}
		w.reach("", "-I 10.244.5.9 10.244.7.0")
		w.reach(w.node, "10.244.5.9")

		if err := w.m.ModifyNetwork(id, request("Remove", peer)); err != nil {
			t.Fatal(err)
		}
		if out := w.run("ip route; ip neigh; bridge fdb"); strings.Contains(out, "10.244.7.0") ||
			strings.Contains(out, "a2:0b:cc:dd:ee:01") {
			t.Errorf("the entries were not removed: %s", out)
		}
		if err := w.m.DeleteNetwork(id); err != nil {
			t.Fatal(err)
		}
		w.reach("", "10.99.0.1")
		if out := w.run("ip -br addr"); strings.Contains(out, "vEthernet") || strings.Contains(out, "10.244") {
			t.Errorf("devices are left: %s", out)
		}
	})
}

// The host endpoint of an L2Bridge network becomes an adapter. Routes and
// forwarding are set in the kernel.
func TestBridgeForwards(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		id := create(t, w.m, document("cbr0", hns.L2Bridge, 0))
		ep := json.RawMessage(`{"Name":"cbr0_ep","IpConfigurations":[{"IpAddress":"10.244.5.2"}],"SchemaVersion":{"Major":2,"Minor":0}}`)
		made, err := w.m.CreateEndpoint(id, ep)
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ ID string }
		if err := json.Unmarshal(made, &e); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is already attached
			if err := w.m.AttachHost(e.ID); err != nil {
				t.Fatal(err)
			}
		}
		host, uplink := w.m.Admin().Adapter("vEthernet (cbr0_ep)"), w.m.Admin().Adapter("vEthernet (Ethernet)")
		if addresses(host) != "10.244.5.2/24" || !strings.Contains(w.run("ip -br addr"), "10.244.5.2/24") {
			t.Errorf("the host's endpoint is %+v", host)
		}
		w.inNode("ip route add 10.244.5.0/24 via 10.99.0.2")
		w.reach(w.node, "10.244.5.2")
		if err := w.m.Admin().SetForwarding(uplink.Name, false, true); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(w.run("cat /proc/sys/net/ipv4/conf/vEthernet1/forwarding")); got != "1" {
			t.Errorf("forwarding is %s", got)
		}
		route := hns.Route{Dst: mustPrefix("10.244.7.0/24"), NextHop: hnstest.Gateway, Index: uplink.Index}
		other := route
		other.NextHop = other.NextHop.Next().Next()
		for _, r := range []hns.Route{route, other, route} {
			if err := w.m.AddRoute(r); err != nil {
				t.Fatal(err)
			}
		}
		if out := w.run("ip route show 10.244.7.0/24"); strings.Count(out, "\n") != 2 {
			t.Errorf("want two routes, there are: %s", out)
		}
		for range 2 {
			if err := w.m.DeleteRoute(route); err != nil {
				t.Fatal(err)
			}
		}
		if out := w.run("ip route show 10.244.7.0/24"); strings.Contains(out, "10.99.0.1 ") ||
			!strings.Contains(out, "10.99.0.3 ") {
			t.Errorf("want only the other route, there is: %s", out)
		}
	})
}

// TCP connections end when their address moves to another adapter.
func TestConnectionsEnd(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.m.Turn(func(k *hnstest.Knobs) { k.KillTCP, k.Outage = true, -1 })
		l, err := net.Listen("tcp", "10.99.0.2:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		create(t, w.m, document("cbr0", hns.L2Bridge, 0))
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
		if _, err = c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
			t.Errorf("the connection ended with %v", err)
		}
	})
}
