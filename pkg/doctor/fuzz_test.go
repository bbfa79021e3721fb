package doctor

import (
	"io"
	"strings"
	"testing"
)

// FuzzTexts passes arbitrary texts to the checks as configuration and as output
// of other programs. Each check must return a valid result.
func FuzzTexts(f *testing.F) {
	for _, windows := range []bool{false, true} {
		f.Add(windows, conflist, ":FORWARD DROP [0:0]\n-A FORWARD -m comment --comment \"a b\" -j X", nftBase("input", "drop", dropPort, blocked), "--source-vip=10.5.3.2")
		f.Add(windows, overlayConf, "-A INPUT -p udp --dports 1:2,3 -j DROP\n-A\n:\n-A x --comment", nftBase("forward", "accept", extension), "--source-vip")
		f.Add(windows, `{"plugins":[{"type":"flannel","delegate":null}],"Exceptions":["::/0"]}`, "-A INPUT -j", "{", "-")
	}
	f.Fuzz(func(t *testing.T, windows bool, conf, rules, nft, args string) {
		s := healthy()
		if windows {
			s = healthyWindows()
		}
		s.files(CNIFile{"10-x.conf", conf})
		s.rules(strings.Split(rules, "\n")...)
		s.Linux.NFTables = Known(nft)
		s.Windows.KubeProxy = Known(strings.Split(args, " "))
		results := Examine(s)
		for _, r := range results {
			if r.Verdict == "" || (r.Fix == "") != (r.Verdict != Fail && r.Verdict != Warn) {
				t.Errorf("%+v", r)
			}
		}
		if err := Print(io.Discard, results, true); err != nil {
			t.Error(err)
		}
	})
}
