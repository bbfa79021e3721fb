//go:build cluster

package cluster_test

import (
	"maps"
	"strings"
	"syscall"
	"testing"

	"flannel/cmd/flannel-lab/cluster"
)

// Edits of the manifest.
var (
	// With the backend udp: what Documentation/udp/kustomization.yaml sets.
	privileged = []string{"allowPrivilegeEscalation: false\n          readOnlyRootFilesystem: true\n" +
		"          capabilities:\n            drop: [ALL]\n            add: [NET_ADMIN, NET_RAW]",
		"privileged: true\n          readOnlyRootFilesystem: true"}
	// The machine's wireguard-go, which the image lacks, and a directory for its
	// sockets: /var/run is not a link to /run in the image. It needs /dev/net/tun,
	// too.
	wireguardGo = append([]string{
		"        - name: xtables-lock\n          mountPath", "        - name: wireguard-go\n          mountPath: /usr/bin/wireguard-go\n" +
			"        - name: wireguard\n          mountPath: /run/wireguard\n        - name: wireguard\n          mountPath: /var/run/wireguard\n" +
			"        - name: xtables-lock\n          mountPath",
		"      - name: xtables-lock\n        hostPath", "      - name: wireguard-go\n        hostPath: {path: /usr/bin/wireguard-go, type: File}\n" +
			"      - name: wireguard\n        emptyDir: {}\n      - name: xtables-lock\n        hostPath",
	}, privileged...)
	nftablesRules = []string{"flanneld:dev", "flanneld:dev-nftables", `"EnableNFTables": false`, `"EnableNFTables": true`}
)

// TestClusterBackends has each backend that runs without a kernel module which
// machines for tests often lack: not ipip and ipsec. Together with
// TestClusterConfigurations, all four pairs of kube-proxy's and flanneld's kinds
// of firewall rules occur, and each backend with IPv6 has it. The guard drops what
// it finds from the start, and must find nothing but packets of nodes that join.
//
//	backend    kube-proxy  flanneld  addresses
//	vxlan      nftables    iptables  both
//	host-gw    iptables    nftables  both
//	wireguard  nftables    iptables  both, by wireguard-go
//	udp        iptables    iptables  IPv4, the only family that it has
//	alloc      nftables    nftables  IPv4, with routes that the test adds
func TestClusterBackends(t *testing.T) {
	nftables := cluster.Options{ProxyMode: "nftables"}
	for name, config := range map[string]struct {
		options   cluster.Options
		edits     []string
		pausing   bool // packets pass through a process in the container
		unguarded bool
	}{
		"vxlan":     {options: cluster.Options{ProxyMode: "nftables", Dual: true}},
		"host-gw":   {options: cluster.Options{Dual: true}, edits: nftablesRules},
		"wireguard": {options: cluster.Options{ProxyMode: "nftables", Dual: true}, edits: wireguardGo, pausing: true},
		"udp":       {edits: privileged, pausing: true},
		"alloc":     {options: nftables, edits: nftablesRules, unguarded: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, config.options, append([]string{`"Type": "vxlan"`, `"Type": "` + name + `", "Guard": "enforce", "GuardTrial": 0`},
				config.edits...)...)
			if name == "alloc" {
				addRoutes(t, c)
			}
			talk(t, c)
			before := map[*cluster.Node]map[string]string{}
			if !config.unguarded {
				for _, n := range c.Nodes {
					before[n] = guardCounters(t, n)
					foundEarly(t, n, name, before[n])
				}
			}
			kill := func() { must(t, c.Nodes[0].KillDaemon(t.Context(), syscall.SIGKILL)) }
			if config.pausing {
				flood(t, c, kill)
			} else {
				lossless(t, c, kill)
			}
			talk(t, c)
			for n, counters := range before {
				if after := guardCounters(t, n); !maps.Equal(after, counters) {
					t.Errorf("the guard of %s has found packets: %v, before %v", n.Name, after, counters)
				}
			}
		})
	}
}

// addRoutes adds routes to the pods of all other nodes, as the program does that
// the backend alloc leaves this to.
func addRoutes(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		for _, peer := range c.Nodes {
			cidrs, err := c.PodCIDRs(t.Context(), peer.Name)
			must(t, err)
			if peer != n {
				_, err = n.Run(t.Context(), "ip", "route", "add", cidrs[0].String(), "via", peer.IP4.String())
				must(t, err)
			}
		}
	}
}

// foundEarly checks that the guard of a node has found no other packets than those of nodes
// that joined (see "Nodes that join" in Documentation/guard.md).
func foundEarly(t *testing.T, n *cluster.Node, backend string, counters map[string]string) {
	t.Helper()
	for name, value := range counters {
		ofJoined := strings.Contains(name, `rule="outsider"`) || backend == "host-gw" && strings.Contains(name, `rule="spoofed"`)
		if value != "0" && !ofJoined {
			t.Errorf("the guard of %s has found packets before the test: %s %s", n.Name, name, value)
		}
	}
}

// guardCounters returns the packets that the guard of a node has found, by metric. It is an
// error if the guard does not work.
func guardCounters(t *testing.T, n *cluster.Node) map[string]string {
	t.Helper()
	lines, err := metrics(t.Context(), n)
	must(t, err)
	works, counters := false, map[string]string{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, " ")
		works = works || name == `flanneld_guard_working{mode="enforce"}` && value == "1"
		if strings.HasPrefix(name, "flanneld_guard_packets_total{") {
			counters[name] = value
		}
	}
	if !works || len(counters) == 0 {
		t.Errorf("%s: the guard works: %v; it has %d counters", n.Name, works, len(counters))
	}
	return counters
}
