package doctor

import (
	"fmt"
	"strings"
	"testing"
)

func TestFirewalls(t *testing.T) {
	const jump = `-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD`
	const firewalld = `table inet firewalld { # progname firewalld
	chain filter_INPUT {
		type filter hook input priority 10; policy accept;
		ct state { established, related } accept
		jump filter_INPUT_POLICIES
		reject with icmpx admin-prohibited
	}
	chain filter_IN_public_allow {
		tcp dport 22 accept
		%s
	}
}
`
	for _, c := range []struct {
		name    string
		verdict map[string]Verdict
		rules   []string
		nft     string
	}{
		{"Docker's policy, without our jump", map[string]Verdict{"FL203": Fail}, []string{":FORWARD DROP [0:0]", "-A FORWARD -j DOCKER-USER"}, ""},
		{"Docker's policy", map[string]Verdict{"FL203": OK}, []string{":FORWARD DROP [0:0]", jump}, ""},
		{"RHEL's reject before our jump", map[string]Verdict{"FL203": Fail}, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited", jump}, ""},
		{"RHEL's reject, without our jump", map[string]Verdict{"FL203": Fail}, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"}, ""},
		{"DROP before our jump", map[string]Verdict{"FL203": Fail}, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -j DROP", "-A FORWARD -j KUBE-FORWARD", jump}, ""},
		{"our jump after rules of other programs", map[string]Verdict{"FL203": OK}, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -j KUBE-ROUTER-FORWARD", "-A FORWARD -j cali-FORWARD", jump}, ""},
		{"RHEL's reject after our jump", map[string]Verdict{"FL203": OK}, []string{":FORWARD ACCEPT [0:0]", jump, "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"}, ""},
		{"a comment that looks like a rule", map[string]Verdict{"FL203": OK}, []string{":FORWARD ACCEPT [0:0]", `-A FORWARD -m comment --comment "was \"x\" -j DROP" -j ACCEPT`, jump}, ""},
		{"DROP for one interface only", map[string]Verdict{"FL203": OK}, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -i eth1 -j DROP", jump}, ""},
		{"another table drops", map[string]Verdict{"FL203": Warn}, []string{jump}, "table inet mine {\n\tchain fwd {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n"},
		{"another table drops some packets", map[string]Verdict{"FL203": OK}, []string{jump}, "table inet mine {\n\tchain fwd {\n\t\ttype filter hook forward priority 0; policy drop;\n\t\tiifname \"cni0\" accept\n\t}\n}\n"},
		{"iptables' own table", map[string]Verdict{"FL203": OK}, []string{jump}, "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n"},

		{"port dropped", map[string]Verdict{"FL204": Fail}, []string{":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp --dport 8000:9000 -j DROP"}, ""},
		{"port dropped among others", map[string]Verdict{"FL204": Fail}, []string{"-A INPUT -p udp -m multiport --dports 53,8472 -j REJECT --reject-with icmp-port-unreachable"}, ""},
		{"another port dropped", map[string]Verdict{"FL204": OK}, []string{":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp --dport 4789 -j DROP", "-A INPUT -p tcp -m tcp --dport 8472 -j DROP"}, ""},
		{"policy DROP", map[string]Verdict{"FL204": Warn}, []string{":INPUT DROP [0:0]", "-A INPUT -i lo -j ACCEPT"}, ""},
		{"policy DROP, port accepted in another chain", map[string]Verdict{"FL204": OK}, []string{":INPUT DROP [0:0]", "-A INPUT -j ufw-user-input", "-A ufw-user-input -s 192.168.0.0/24 -p udp -m udp --dport 8472 -j ACCEPT"}, ""},
		{"policy DROP, all accepted", map[string]Verdict{"FL204": OK}, []string{":INPUT DROP [0:0]", `-A INPUT -m comment --comment "let all in" -j ACCEPT`}, ""},
		{"reject at the end", map[string]Verdict{"FL204": Warn}, []string{":INPUT ACCEPT [0:0]", "-A INPUT -p icmp -j ACCEPT", "-A INPUT -j REJECT --reject-with icmp-host-prohibited"}, ""},
		{"accepted before the reject", map[string]Verdict{"FL204": OK}, []string{"-A INPUT -p udp -m udp --dport 8472 -j ACCEPT", "-A INPUT -j REJECT --reject-with icmp-host-prohibited"}, ""},
		{"firewalld", map[string]Verdict{"FL204": Warn}, nil, fmt.Sprintf(firewalld, "udp dport 5353 accept")},
		{"firewalld with the port", map[string]Verdict{"FL204": OK}, nil, fmt.Sprintf(firewalld, "udp dport 8472 accept")},
		{"firewalld with a range", map[string]Verdict{"FL204": OK}, nil, fmt.Sprintf(firewalld, "udp dport { 53, 8400-8500 } accept")},
	} {
		s := healthy()
		s.rules(c.rules...)
		s.Linux.NFTables = Known(c.nft)
		for code, want := range c.verdict {
			if r := find(t, Examine(s), code); r.Verdict != want {
				t.Errorf("%s: %s is %s, %q, want %s", c.name, code, r.Verdict, r.Seen, want)
			}
		}
	}
	// A packet must pass the tables of both variants.
	s := healthy()
	s.Linux.IPTables = Known([]Listing{{"iptables-nft", []string{jump}}, {"iptables-legacy", []string{":FORWARD DROP [0:0]"}}})
	check(t, s, "FL203", Fail, "FORWARD DROP")
	s.Linux.IPTables = Unknown[[]Listing]("iptables: not found")
	check(t, s, "FL203", Skipped, "")
}

// The packets of an IPIP tunnel have a protocol of their own, and no port.
func TestFirewallsForIPIP(t *testing.T) {
	const nft = "table inet mine {\n\tchain in {\n\t\ttype filter hook input priority 0; policy drop;\n\t\t%s\n\t}\n}\n"
	s := healthy()
	s.changeDevice("flannel.1", func(d *Device) { d.Type = "ipip" })
	for rules, want := range map[string]Verdict{
		"-A INPUT -p ipencap -j DROP":                               Fail,
		"-A INPUT -p 4 -j REJECT":                                   Fail,
		"-A INPUT -p udp -j DROP":                                   OK,
		":INPUT DROP [0:0]\n-A INPUT -p udp -j ACCEPT":              Warn,
		":INPUT DROP [0:0]\n-A INPUT -s 10.0.0.1 -p ipv4 -j ACCEPT": OK,
		"-A INPUT -p ipencap -j ACCEPT\n-A INPUT -j DROP":           OK,
	} {
		s.rules(strings.Split(rules, "\n")...)
		if r := find(t, Examine(s), "FL204"); r.Verdict != want {
			t.Errorf("%s: FL204 is %s, %q, want %s", rules, r.Verdict, r.Seen, want)
		}
	}
	s.rules()
	for rule, want := range map[string]Verdict{"ip protocol 4 accept": OK, "meta l4proto { 4, 50 } accept": OK, "udp dport 4 accept": Warn, "ip protocol 47 accept": Warn} {
		s.Linux.NFTables = Known(fmt.Sprintf(nft, rule))
		if r := find(t, Examine(s), "FL204"); r.Verdict != want {
			t.Errorf("nftables, %s: FL204 is %s, %q, want %s", rule, r.Verdict, r.Seen, want)
		}
	}
	check(t, s, "FL205", Skipped, "")
}
