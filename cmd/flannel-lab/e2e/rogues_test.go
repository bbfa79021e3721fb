package e2e

import (
	"fmt"
	"strings"

	"flannel/cmd/flannel-lab/lab"
)

// rogue is an invalid lease, or one that is invalid for some nodes.
type rogue struct {
	key, value string
	public     string // its PublicIP
	wins       bool   // every node accepts it, because it is older than the lease that it conflicts with
	silent     bool   // it has no backend data yet, so it is neither accepted nor rejected
	self       int    // number of the node that has its address, and that alone rejects it; 0: none
}

// rejectedBy reports whether the node with this index rejects the lease.
func (r rogue) rejectedBy(node int) bool {
	if r.self != 0 {
		return r.self == node+1
	}
	return !r.wins && !r.silent
}

// rogues returns hundreds of invalid leases. Many conflict with the lease of
// the second node, which is given.
func rogues(backend string, l *lab.Lab, key string, victim value) []rogue {
	m := &rogueList{backend: backend}
	four, six, _ := strings.Cut(key, "&")
	base := strings.TrimSuffix(four, ".0-24")
	m.keys()
	m.values()
	m.places(base)
	m.conflicts()
	m.addresses(l)
	if backend == "extension" { // whose peers publish strings
		for i := range 20 {
			data := []string{`{"VNI":1}`, "7", "[]", "true", "{}"}[i%5]
			m.add(fmt.Sprintf("10.5.126.%d-30", i*4), strings.Replace(m.good(), "}", `,"BackendData":`+data+"}", 1))
		}
	}
	if backend == "vxlan" {
		m.macs(victim.BackendData.VtepMAC)
		// One of the families of the victim, under a key that sorts before its own.
		m.add(four, m.lease("192.168.100.66", m.mac()))
		both := strings.Replace(m.good(), `"PublicIPv6":null`, `"PublicIPv6":"fd00:100::66"`, 1)
		m.add("10.5.92.0-24&"+six, strings.TrimSuffix(both, "}")+`,"BackendV6Data":{"VNI":1,"VtepMAC":"`+m.mac()+`"}}`)
	} else {
		m.add(four+"&fd05:0:0:9::-64", strings.Replace(m.lease("192.168.100.66", ""), `"PublicIPv6":null`,
			`"PublicIPv6":"fd00:100::66"`, 1))
	}
	return m.all
}

// rogueList collects rogues.
type rogueList struct {
	backend  string
	all      []rogue
	macCount int
}

func (m *rogueList) add(key, value string) { m.all = append(m.all, rogue{key: key, value: value}) }

// mac returns another MAC at each call.
func (m *rogueList) mac() string {
	m.macCount++
	return fmt.Sprintf("02:bb:00:00:%02x:%02x", m.macCount>>8, m.macCount&255)
}

// lease returns a lease that is valid except for its arguments.
func (m *rogueList) lease(public, mac string) string {
	data := ""
	if m.backend == "vxlan" {
		data = `,"BackendData":{"VNI":1,"VtepMAC":"` + mac + `"}`
	}
	return `{"PublicIP":"` + public + `","PublicIPv6":null,"BackendType":"` + m.backend + `"` + data + `}`
}

func (m *rogueList) good() string { return m.lease("192.168.100.66", m.mac()) }

// keys adds keys that contain no valid subnet.
func (m *rogueList) keys() {
	for i := range 60 {
		m.add(fmt.Sprintf("foo-%d", i), m.good())
	}
	for _, key := range []string{"10.5.3.0_24", "10.5.300.0-24", "10.5.3.0-33", "10.5.3.0--1", "10.5.3.1-24",
		"10.5.03.0-24", "10.5.3.0-24/", "a/10.5.3.0-24",
		"0.0.0.0-0", "::-0", "0.0.0.0-0&::-0", "fd05::-64", "10.5.3.0-24&", "10.5.3.0-24&10.5.4.0-24",
		"::ffff:10.5.3.0-120", "0.0.0.0-0&::ffff:10.5.3.0-120",
		"0.0.0.0-0&fe80::%eth0-64", "a\nlevel=ERROR msg=\"a line of its own\"", "\x1b[31mred", "\xff\xfe", "$(reboot)", "--help", strings.Repeat("x", 1000)} {
		m.add(key, m.good())
	}
}

// values adds values that are not leases, and huge ones.
func (m *rogueList) values() {
	for i, value := range []string{"garbage", "", "null", "[]", "{", "{}", "7", "\x00", `{"PublicIP":7}`,
		`{"PublicIP":"none"}`, `{"PublicIP":"::ffff:192.168.100.66"}`,
		`{"PublicIP":"192.168.100.66`, `{"PublicIP":"fd00:100::66"}`, strings.Repeat("[",
			60_000), strings.Repeat(`{"PublicIP":`, 5000), m.good() + "x"} {
		for k := range 4 {
			m.add(fmt.Sprintf("10.5.%d.0-24", 1+i*4+k), value)
		}
	}
	for i := range 40 { // 1 MB each
		data := `"BackendData":{"VNI":1,"VtepMAC":"` + m.mac() + `","Junk":"` + strings.Repeat("x", 1<<20) + `"}`
		m.add(fmt.Sprintf("10.5.66.%d-30", 4*i), `{"PublicIP":"192.168.100.66","PublicIPv6":null,"BackendType":"`+m.backend+`",`+data+`}`)
	}
}

// places adds subnets that no node can have. base is the start of the victim's
// subnet.
func (m *rogueList) places(base string) {
	for _, key := range []string{"128.0.0.0-1", "0.0.0.0-1", "10.0.0.0-8", "10.5.0.0-16", "10.4.0.0-15", "127.0.0.0-8",
		"224.0.0.0-4", "203.0.113.0-24",
		"192.168.100.0-24", "192.168.100.0-31", "192.168.100.1-32", "192.168.100.11-32", "192.168.100.12-32",
		"192.168.0.0-16", "169.254.0.0-16",
		base + ".0-25", base + ".128-25", base + ".0-23", base + ".0-22", base + ".0-17", base + ".128-30"} {
		if _, bits, _ := strings.Cut(key, "-"); strings.HasPrefix(key, base) && len(bits) == 2 && bits < "24" &&
			!aligned(base, bits) {
			continue // it has another base address
		}
		m.add(key, m.good())
	}
	for i := range 64 { // parts of the subnet of the victim
		m.add(fmt.Sprintf("%s.%d-30", base, i*4), m.good())
	}
	m.all = dedup(m.all)
	for i := range 40 { // single addresses, too small for pods
		m.add(fmt.Sprintf("10.5.67.%d-32", i), m.good())
	}
	for i := range 60 {
		m.add(fmt.Sprintf("10.6.%d.0-24", i), m.good())
	}
}

func aligned(base, bits string) bool {
	var third, length int
	_, err1 := fmt.Sscanf(base, "10.5.%d", &third)
	_, err2 := fmt.Sscanf(bits, "%d", &length)
	return err1 == nil && err2 == nil && third%(1<<(24-length)) == 0
}

// dedup keeps the first rogue of each key.
func dedup(all []rogue) (kept []rogue) {
	seen := map[string]bool{}
	for _, r := range all {
		if !seen[r.key] {
			seen[r.key] = true
			kept = append(kept, r)
		}
	}
	return kept
}

// conflicts adds pairs of conflicting rogues. Every node accepts the older one,
// whatever the order of their subnets.
func (m *rogueList) conflicts() {
	win := func(key, value string) {
		m.all = append(m.all, rogue{key: key, value: value, public: "192.168.100.66", wins: true})
	}
	win("10.5.96.0-22", m.good())
	m.add("10.5.96.0-23", m.good())
	m.add("10.5.98.128-25", m.good())
	win("10.5.95.64-26", m.good())
	m.add("10.5.94.0-23", m.good())
	if m.backend != "host-gw" { // which has no path to an address in this subnet anyway
		same := m.good()
		win("10.5.93.0-24", same)
		if m.backend != "vxlan" {
			return
		}
		for i := range 20 {
			m.add(fmt.Sprintf("10.5.%d.0-24", 70+i), same)
		}
	}
}

// addresses adds addresses that no peer can have, and addresses of nodes.
func (m *rogueList) addresses(l *lab.Lab) {
	bad := []string{"127.0.0.1", "127.9.9.9", "0.0.0.0", "224.0.0.1", "239.1.1.1", "255.255.255.255", "169.254.1.1",
		"10.5.93.9"}
	if m.backend == "host-gw" {
		bad = append(bad, "192.168.100.255", "192.168.100.0", "172.16.0.1", "203.0.113.1")
	}
	for i, public := range bad {
		for k := range 4 {
			m.add(fmt.Sprintf("10.5.%d.%d-29", 68+(i*4+k)/32, (i*4+k)%32*8), m.lease(public, m.mac()))
		}
	}
	for i, n := range l.Nodes {
		m.all = append(m.all, rogue{key: fmt.Sprintf("10.5.%d.0-24", 90+i), value: m.lease(n.IP4.String(), m.mac()),
			public: n.IP4.String(), self: i + 1})
	}
	for i, kind := range []string{"udp", "ipip", "wireguard", "ipsec", "VXLAN", "Host-GW", "\\u0000",
		strings.Repeat("x", 1000)} {
		if kind == m.backend {
			continue
		}
		for k := range 4 {
			m.add(fmt.Sprintf("10.5.125.%d-29", (i*4+k)*8),
				strings.Replace(m.good(), `"BackendType":"`+m.backend, `"BackendType":"`+kind, 1))
		}
	}
	// Only for udp, which publishes no type, this is a whole lease.
	untyped := m.backend == "udp"
	m.all = append(m.all, rogue{key: "10.5.124.0-24", value: `{"PublicIP":"192.168.100.66","PublicIPv6":null}`,
		public: "192.168.100.66", silent: !untyped, wins: untyped})
}

// macs adds the MAC of the victim under keys that sort before its own, and invalid
// MACs.
func (m *rogueList) macs(victim string) {
	for i := range 60 {
		m.add(fmt.Sprintf("10.5.126.%d-30", i*4), m.lease("192.168.100.66", victim))
	}
	for i := range 20 {
		m.add(fmt.Sprintf("10.5.127.%d-30", i*4), m.lease("192.168.100.66", []string{"ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:00:00:00:01", "00:00:00:00:00:00", "zz", "", "02:00:00:00:00:00:00:01"}[i%7]))
	}
	for i := range 20 {
		m.add(fmt.Sprintf("10.5.127.%d-30", 128+i*4), `{"PublicIP":"192.168.100.66","BackendType":"vxlan"`+[]string{"", `,"BackendData":null`, `,"BackendData":{"VNI":1}`, `,"BackendData":"x"`, `,"BackendData":{"VNI":2,"VtepMAC":"02:00:00:00:00:09"}`}[i%5]+"}")
	}
}
