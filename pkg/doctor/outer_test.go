package doctor

import (
	"strings"
	"testing"

	"flannel/pkg/logtest"
)

// The fix for a rule that drops the tunnel's packets names what to accept. Only
// protocols that have ports are given one.
func TestFirewallFixes(t *testing.T) {
	ipip := healthy()
	ipip.changeDevice("flannel.1", func(d *Device) { d.Type = "ipip" })
	for _, c := range []struct {
		s        Snapshot
		drop     string
		fix, not string // the first one: words
	}{
		{healthy(), "-p udp", "--add-port=8472/udp", "--add-protocol"},
		{ipip, "-p 4", "--add-protocol=ipencap INPUT", "udp"},
		{encrypted(), "-p esp", "50 --add-protocol=esp INPUT", "udp"},
		{encrypted(), "-p udp --dport 500", "--add-port=500/udp", "--add-protocol"},
	} {
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			s := c.s
			s.rules(":INPUT ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]", "-A "+chain+" "+c.drop+" -j DROP")
			r := find(t, Examine(s), "FL204")
			if r.Verdict != Fail || !logtest.Names(r.Fix, strings.Fields(c.fix)...) || logtest.Names(r.Fix, c.not) {
				t.Errorf("%s %s: %s, the fix is %q, want %q and not %q", chain, c.drop, r.Verdict, r.Fix, c.fix, c.not)
			}
		}
	}
}
